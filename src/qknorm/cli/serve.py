"""``qknorm serve``: trained models behind HTTP, and a page to try them on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qknorm.cli import options
from qknorm.errors import UserError


def serve(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders of trained models.")],
    host: Annotated[
        str, typer.Option(help="Address to serve at; other machines reach it only if it is not loopback.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="QKNORM_API_KEY",
            show_envvar=False,
            metavar="KEY",
            help="What clients must send as Authorization: Bearer KEY; better set as QKNORM_API_KEY, which "
            "other users of the machine cannot see.",
        ),
    ] = None,
    wait: Annotated[
        int, typer.Option(min=0, max=1000, help="Milliseconds to wait for more to translate together.")
    ] = 4,
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Bound of what is translated together, in subwords; 1 for one by one."),
    ] = None,
    device: options.Device = None,
) -> None:
    """Serve trained models: a page in the browser, and an API.

    On the page: type a sentence, see its translations with their scores, and where each word looks; two runs
    side by side. The API is POST /translate, GET /models, /health and /metrics, described at /docs. Requests
    that arrive together are translated together. SIGTERM and Ctrl-C let running requests finish.

    \b
      qknorm serve runs/gl-en
      qknorm serve runs/demo/qknorm runs/demo/baseline --port 8080
      curl -H 'Content-Type: application/json' -d '{"text": "unha frase"}' http://127.0.0.1:8000/translate
    """
    if api_key is not None and not (api_key and api_key.isascii() and api_key.isprintable()):
        raise UserError("The API key must be printable ASCII, and not empty.")
    from qknorm.run import Run
    from qknorm.serving import Limits
    from qknorm.serving.server import serve as serve_runs

    for run in runs:
        if missing := Run.open(run).missing_members():
            typer.echo(missing, err=True)
    limits = Limits(wait=wait / 1000, batch_tokens=batch_tokens)
    serve_runs(runs, host, port, api_key, options.check_device(device), limits)
