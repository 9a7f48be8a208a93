"""When this command began, and times as people read them."""

from __future__ import annotations

import os
import time
from pathlib import Path

_IMPORTED = time.monotonic()


def process_start() -> float:
    """When this process was started, by ``time.monotonic()``; what Python imports before a command counts.

    Linux tells, to 10 ms. Elsewhere it is when this file was imported.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # since boot: the 22nd of all fields, the first two of which are cut off
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    return min(_IMPORTED, time.monotonic() - age) if ticks > 0 else _IMPORTED


def clock(seconds: float) -> str:
    """As a clock shows it: 0:53, 12:04, 1:02:03."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
