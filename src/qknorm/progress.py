"""What long work tells the user: a live bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

LOG_SECONDS = 30.0
"""How often a log gets a line about a bar."""


class Progress:
    """Notes, warnings and one bar; on standard error, so that standard output stays for results."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True, quiet=quiet)

    def note(self, text: str) -> None:
        self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", markup=False)

    def bar(self, name: str, total: int, done: int = 0) -> Bar:
        return Bar(self.console, name, total, done)


class Bar:
    """One count on its way to a total; use it in a ``with`` block."""

    def __init__(self, console: Console, name: str, total: int, done: int) -> None:
        self.console, self.name, self.total, self.done = console, name, total, done
        self._logged = time.monotonic()
        self._bars: Bars | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[about]}"),
            )
            self._bars = Bars(*columns, console=console, transient=True)
            self._task = self._bars.add_task(name, total=total, completed=done, about="")

    def __enter__(self) -> Bar:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def to(self, done: int, about: str = "") -> None:
        """So much is done; ``about`` is shown behind the bar."""
        self.done = done
        if self._bars is not None:
            self._bars.update(self._task, completed=done, about=about)
        elif time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            self.console.print(f"{self.name}: {done} of {self.total} {about}", markup=False)
