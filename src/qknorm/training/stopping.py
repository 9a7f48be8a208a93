"""Asking a training to stop: Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qknorm.progress import Progress
from qknorm.workers import Workers

ONE_ASKING = 1.0
"""Seconds in which several Ctrl-C are one: `timeout` sends its signal to a process and again to its group."""


@contextmanager
def stoppable(workers: Workers, progress: Progress) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask to stop after the update under way; a second Ctrl-C stops at once.

    Not with several processes: at one Ctrl-C torchrun sends each of them another.
    """
    asked = 0.0

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if workers.stop_asked:
            again = number == signal.SIGINT and time.monotonic() - asked > ONE_ASKING
            if again and workers.size == 1:
                raise KeyboardInterrupt
            return
        workers.stop_asked, asked = True, time.monotonic()
        progress.note("Stopping after this update, to save")

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    except ValueError:  # not the main thread: whoever runs us handles signals
        pass
    try:
        yield
    finally:
        if not workers.tells_of_loss:  # this one ends by itself, once it has said why
            for stopped, handler in before.items():
                signal.signal(stopped, handler)
