"""Text from a stream (a pipe, a terminal, a redirected file), line by line as it comes."""

import os
import select
import time
from collections.abc import Iterator

from qknorm.data.text import fault
from qknorm.errors import UserError

_READ = 1 << 16  # bytes at a time
_PATIENCE_S = 0.02  # how long lines that could be answered wait for company


def line_groups(stream: int, most: int) -> Iterator[list[str]]:
    """The lines of a file descriptor in groups of up to `most`: all that are there, so that none waits.

    Lines are as `qknorm.data.lines` gives those of a file; the first that is not text raises UserError.
    """
    number = 0
    for group in _raw_groups(stream, most):
        if number == 0:
            group[0] = group[0].removeprefix(b"\xef\xbb\xbf")
        for place, raw in enumerate(group, number + 1):
            if found := fault(raw):
                raise UserError(f"Standard input line {place} {found}.")
        number += len(group)
        yield [raw.removesuffix(b"\r").decode("utf-8") for raw in group]


def _raw_groups(stream: int, most: int) -> Iterator[list[bytes]]:
    whole: list[bytes] = []
    begun = bytearray()  # a line whose end has not come yet
    since = 0.0
    while chunk := os.read(stream, _READ):
        since = since if whole else time.monotonic()
        first, *rest = chunk.split(b"\n")
        begun += first
        if rest:
            whole += [bytes(begun), *rest[:-1]]
            begun = bytearray(rest[-1])
        while len(whole) >= most:
            yield whole[:most]
            whole = whole[most:]
        if whole and not _more_comes(stream, since + _PATIENCE_S - time.monotonic()):
            yield whole
            whole = []
    if begun:
        whole.append(bytes(begun))
    if whole:
        yield whole


def _more_comes(stream: int, seconds: float) -> bool:
    """Whether there is something to read, its end included, within this time."""
    return bool(select.select([stream], [], [], max(0.0, seconds))[0])
