"""The ``qknorm`` command: thin commands over the package; one file a group of them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import NoReturn

from qknorm.errors import LostWorkerError, UserError


def main() -> None:
    """Run the command line. A mistake of the user ends with a sentence and exit code 2, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character gets "?" for it
    try:
        from qknorm.cli.app import app

        app(prog_name="qknorm")
    except SystemExit as ended:
        if "TORCHELASTIC_RUN_ID" in os.environ and isinstance(ended.code, int | None):
            _leave(ended.code or 0)
        raise
    except LostWorkerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)  # what libraries do at the end of a process would wait for the lost one
    except UserError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "qknorm":
            raise
        served = error.name.partition(".")[0] in ("fastapi", "starlette", "uvicorn")
        extra = "serve" if served else "translate"
        _fail(f"The package {error.name} is not installed; install it with: pip install 'qknorm[{extra}]'")
    except OSError as error:
        if error.errno is None:
            raise
        _fail(f"{error.filename or 'A file'}: {error.strerror}.")
    except KeyboardInterrupt:
        sys.exit(130)


def _leave(code: int) -> NoReturn:
    """End one of torchrun's processes here: taking threads of gloo down at the end of Python aborts some."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it is gone
            stream.flush()
    os._exit(code)


def _fail(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)
