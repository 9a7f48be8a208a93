"""What long work tells the user: a live bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from qknorm.clock import clock

LOG_SECONDS = 30.0
"""How often a log gets a line about a bar."""


class Progress:
    """Notes, warnings and one bar; on standard error, so that standard output stays for results.

    With ``since``, a time by ``time.monotonic()``, lines of a log begin with the time gone by since then.
    """

    def __init__(self, quiet: bool = False, since: float | None = None) -> None:
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True, quiet=quiet)
        self._since = None if self.console.is_terminal else since

    def note(self, text: str) -> None:
        self._print(text)

    def warn(self, text: str) -> None:
        self._print(f"warning: {text}", style="yellow")

    def bar(self, name: str, total: int, done: int = 0) -> Bar:
        return Bar(self, name, total, done)

    def _print(self, text: str, style: str | None = None) -> None:
        if self._since is not None:
            now = clock(time.monotonic() - self._since)
            text = "\n".join(f"{now:>6} {line}".rstrip() for line in text.split("\n"))
        self.console.print(text, style=style, markup=False)


class Bar:
    """One count on its way to a total; use it in a ``with`` block."""

    def __init__(self, progress: Progress, name: str, total: int, done: int) -> None:
        self.progress, self.name, self.total, self.done = progress, name, total, done
        self._logged = time.monotonic()
        self._bars: Bars | None = None
        if progress.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[about]}"),
            )
            self._bars = Bars(*columns, console=progress.console, transient=True)
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
            self.progress.note(f"{self.name}: {done} of {self.total} {about}")
