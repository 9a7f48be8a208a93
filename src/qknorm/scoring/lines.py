"""The lines to be scored: from a list, or from a plain or gzip'd file. `\\n` is the only line break."""

import codecs
import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qknorm.errors import UserError

Text = str | os.PathLike[str] | Sequence[str]
"""One sentence a line: a path (a lone string is a path), or a list of strings."""

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Lines:
    """Sentences, and what to call them in an error: their file, or their part in the comparison."""

    name: str
    sentences: list[str]


def read_lines(text: Text, part: str) -> Lines:
    """The sentences of `text`; `part` ("references") names them where they are not a file."""
    if isinstance(text, str | os.PathLike):
        lines = Lines(os.fspath(text), _decode(_read_bytes(Path(text)), os.fspath(text)))
    else:
        lines = Lines(f"the {part}", list(text))
    if not lines.sentences:
        raise UserError(f"There are no lines in {lines.name}; one sentence a line is needed.")
    return lines


def read_references(text: Text) -> Lines:
    """Like `read_lines`, but at least one line must hold words: without them no score means anything."""
    references = read_lines(text, "references")
    if not any(line.strip() for line in references.sentences):
        raise UserError(f"Every line of {references.name} is blank; the references must hold words.")
    return references


def check_same_length(hypotheses: Lines, references: Lines) -> None:
    """Refuse sides that cannot belong together line by line."""
    ours, theirs = len(hypotheses.sentences), len(references.sentences)
    if ours != theirs:
        count = "There is 1 line" if ours == 1 else f"There are {ours} lines"
        raise UserError(
            f"{count} in {hypotheses.name} but {theirs} in {references.name}; "
            "every translation needs its reference on the same line."
        )


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path.") from None
    except OSError as error:
        raise UserError(f"{path}: the file cannot be read ({error.strerror}).") from None
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path}: the gzip file is damaged or cut short; make or copy it again.") from None


def _decode(data: bytes, name: str) -> list[str]:
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data:
        return []
    rows = data.removesuffix(b"\n").split(b"\n")
    lines = []
    for number, row in enumerate(rows, start=1):
        try:
            lines.append(row.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: byte {error.start + 1} (0x{row[error.start]:02x}) is not UTF-8; "
                "convert the file to UTF-8, for example with iconv."
            ) from None
    return lines
