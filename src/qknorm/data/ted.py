"""The TED Talks tables: one TSV a split, a column a language; a pair of columns becomes a corpus."""

import gzip
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from qknorm.errors import UserError

ARCHIVE = "ted_talks.tar.gz"
TABLES = {f"all_talks_{split}.tsv": split for split in ("train", "dev", "test")}

_MISSING = b"__NULL__"


def find_tables(folder: Path) -> list[Path] | None:
    """The archive in a folder, or its three tables, plain or gzip'd; None where neither is there."""
    if (folder / ARCHIVE).is_file():
        return [folder / ARCHIVE]
    found = [path for name in TABLES for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
    names = {path.name.removesuffix(".gz") for path in found}
    return found if names == set(TABLES) else None


def unpack(
    tables: list[Path], source: str, target: str, files: dict[str, tuple[BinaryIO, BinaryIO]]
) -> tuple[dict[str, int], int]:
    """Write the pairs of two languages into each split's files; how many, and how many rows were unusable."""
    counts: dict[str, int] = {}
    misshapen = 0
    for name, table in _open(tables):
        split = TABLES[name]
        counts[split] = 0
        for sides in pairs(table, source, target, name):
            if sides is None:
                misshapen += 1
                continue
            for side, file in zip(sides, files[split], strict=True):
                file.write(side + b"\n")
            counts[split] += 1
    absent = [name for name, split in TABLES.items() if split not in counts]
    if absent:
        raise tarfile.ReadError(f"there is no {' and no '.join(absent)} in it")
    return counts, misshapen


def pairs(
    lines: Iterable[bytes], source: str, target: str, name: str
) -> Iterator[tuple[bytes, bytes] | None]:
    """The rows of a table that have both languages; None for a row without the header's number of columns.

    Only tabs and line feeds divide: quotes are text.
    """
    rows = iter(lines)
    header = _cells(next(rows, b""))
    columns = []
    for code in (source, target):
        if code.encode() not in header:
            known = " ".join(sorted(cell.decode("utf-8", "replace") for cell in header[1:]))
            raise UserError(f'{name} has no column for the language "{code}"; it has {known}.')
        columns.append(header.index(code.encode()))
    for row in rows:
        cells = _cells(row)
        if len(cells) != len(header):
            yield None
            continue
        first, second = (cells[column] for column in columns)
        if _MISSING not in first and _MISSING not in second:
            yield first, second


def _cells(row: bytes) -> list[bytes]:
    return row.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")


def _open(tables: list[Path]) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Each table's name and lines, straight from the archive or from its own file."""
    if tables[0].name != ARCHIVE:
        for path in tables:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
                yield path.name.removesuffix(".gz"), lines
        return
    with tarfile.open(tables[0], "r|gz") as archive:
        for member in archive:
            name = Path(member.name).name
            file = archive.extractfile(member) if name in TABLES else None
            if file is not None:
                yield name, file
