"""SHA-256 sums of files, kept in a `SHA256SUMS` beside them in the form `sha256sum` writes."""

import os
import re
from pathlib import Path

from qknorm.data.corpus import write_lines
from qknorm.data.text import sha256_file
from qknorm.errors import UserError

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def recorded(folder: Path) -> dict[str, str]:
    """The hashes a folder's `SHA256SUMS` holds, by file name; none where there is no such file."""
    sums = folder / SUMS
    if not sums.is_file():
        return {}
    found: dict[str, str] = {}
    for number, line in enumerate(sums.read_bytes().decode("utf-8", "replace").split("\n"), start=1):
        match = _LINE.fullmatch(line.removesuffix("\r"))
        if match is not None:
            found[match[2]] = match[1]
        elif line:
            raise UserError(
                f"{sums}, line {number}, is not a hash and a file name; remove the file or mend it."
            )
    return found


def record(paths: list[Path]) -> None:
    """Add files of one folder to its `SHA256SUMS`."""
    folder = paths[0].parent
    sums = recorded(folder) | {path.name: sha256_file(path) for path in paths}
    write_lines(folder / SUMS, [f"{digest}  {name}" for name, digest in sorted(sums.items())])


def forget(paths: list[Path]) -> None:
    """Take files out of their folder's `SHA256SUMS`."""
    folder = paths[0].parent
    gone = {path.name for path in paths}
    kept = [(name, digest) for name, digest in sorted(recorded(folder).items()) if name not in gone]
    write_lines(folder / SUMS, [f"{digest}  {name}" for name, digest in kept])


def altered(paths: list[Path]) -> list[Path]:
    """Those files that are not what their folder's `SHA256SUMS` says; a file it does not name is none."""
    sums = recorded(paths[0].parent)
    return [path for path in paths if path.name in sums and sha256_file(path) != sums[path.name]]


def set_aside(paths: list[Path]) -> list[Path]:
    """Rename files that failed a check to `.bad`, to be fetched anew and still be looked at."""
    forget(paths)
    aside = [path.with_name(path.name + ".bad") for path in paths]
    for path, bad in zip(paths, aside, strict=True):
        os.replace(path, bad)
    return aside
