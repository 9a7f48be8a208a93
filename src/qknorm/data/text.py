"""Text files: plain or gzip'd UTF-8, one sentence a line, `\\n` the only line break."""

import contextlib
import gzip
import hashlib
import io
import os
import tempfile
import zlib
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import BinaryIO

from qknorm.errors import UserError

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK = 1 << 16


@contextlib.contextmanager
def open_bytes(path: str | Path) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, unpacked if its first two say gzip, whatever its name."""
    try:
        raw = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise UserError(f"There is no file {path}; check the name and the folder.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; name a text file inside it.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    with raw:
        if raw.peek(2)[:2] == _GZIP:
            with io.BufferedReader(gzip.GzipFile(fileobj=raw), _BLOCK) as unpacked:
                yield unpacked
        else:
            yield raw


def blocks(path: str | Path) -> Iterator[bytes]:
    """The file in pieces of whole lines, `\\n` and all, without its byte order mark; unchecked."""
    number = 0
    begun: list[bytes] = []  # the first part of a line
    mark = _BYTE_ORDER_MARK
    with open_bytes(path) as file:
        try:
            while piece := file.read1(_BLOCK):
                end = piece.rfind(b"\n") + 1
                if end:
                    block = b"".join([*begun, piece[:end]])
                    begun.clear()
                    number += block.count(b"\n")
                    yield block.removeprefix(mark)
                    mark = b""
                if end < len(piece):
                    begun.append(piece[end:])
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(
                f"{path} is a broken gzip file: it cannot be unpacked past line {number}; fetch it again."
            ) from error
        except OSError as error:
            raise UserError(f"{path} cannot be read past line {number}: {error.strerror}.") from error
    if begun:
        yield b"".join(begun).removeprefix(mark)


def rows(block: bytes) -> list[bytes]:
    """The lines of one of the ``blocks``, without the line end (`\\n` or `\\r\\n`)."""
    found = block.removesuffix(b"\n").split(b"\n")
    return [row.removesuffix(b"\r") for row in found] if b"\r" in block else found


def raw_lines(path: str | Path) -> Iterator[bytes]:
    """The lines as bytes, unchecked, without the line end and byte order mark."""
    for block in blocks(path):
        yield from rows(block)


def lines(path: str | Path) -> Iterator[str]:
    """The lines as text; the first that is not text raises UserError with its number."""
    number = 0
    for block in blocks(path):
        if fault(block) is None:
            found = block.decode("utf-8").removesuffix("\n").split("\n")
            yield from [row.removesuffix("\r") for row in found] if b"\r" in block else found
            number += len(found)
            continue
        for raw in rows(block):
            number += 1
            if problem := fault(raw):
                raise UserError(f"{path} line {number} {problem}.")
            yield raw.decode("utf-8")


def fault(raw: bytes) -> str | None:
    """What keeps a line, or one of many, from being text, as the end of a sentence; None when it is text."""
    if b"\0" in raw:
        return "has a NUL byte, so it is not plain text; save the file as UTF-8 text"
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return "is not valid UTF-8; convert the file to UTF-8"
    return None


def pairs(source: str | Path, target: str | Path, keep_blank: bool = False) -> Iterator[tuple[int, str, str]]:
    """Line number, source and target of each pair; those with a blank side only if they are to be kept."""
    left, right = lines(source), lines(target)
    for number, (here, there) in enumerate(zip_longest(left, right), 1):
        if here is None or there is None:
            rest = number + sum(1 for _ in chain(left, right))
            counts = (number - 1, rest) if here is None else (rest, number - 1)
            raise UserError(different_lengths(source, target, *counts))
        if keep_blank or (here.strip() and there.strip()):
            yield number, here, there


def different_lengths(source: str | Path, target: str | Path, here: int, there: int) -> str:
    """The sentence that says two files cannot be two sides of one corpus."""
    return (
        f"{source} has {here:,} lines and {target} has {there:,}; "
        "line n of one must be the translation of line n of the other."
    )


def count_lines(path: str | Path) -> int:
    """How many lines the file has; a last line without a line end counts."""
    return sum(block.count(b"\n") + (not block.endswith(b"\n")) for block in blocks(path))


def count_characters(path: str | Path) -> int:
    """How many characters the file has, line ends counted; bytes that are not text count as one or more."""
    return sum(len(block.decode("utf-8", "replace")) for block in blocks(path))


def sha256_file(path: str | Path) -> str:
    """The SHA-256 of the file as it lies on disk, packed or not."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def sha256_text(path: str | Path) -> str:
    """The SHA-256 of the lines of a file: the same whether it is packed or not, whatever its line ends."""
    digest = hashlib.sha256()
    for line in raw_lines(path):
        digest.update(line + b"\n")
    return digest.hexdigest()


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``path`` once all of it is on disk, or never does."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            yield file
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Write a file whole or not at all: a kill or a full disk leaves what was there before."""
    with replacing(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def sync_folder(folder: str | Path) -> None:
    """Put a folder's entries on disk, so that a rename in it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
