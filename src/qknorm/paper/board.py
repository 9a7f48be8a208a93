"""What the user is told while rows are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.table import Table

from qknorm.paper.tasks import RECORDED, TRAINING, Task
from qknorm.progress import Progress


class Board:
    """Where everything stands: a table on a terminal, a line for each change in a log."""

    def __init__(self, tasks: Sequence[Task], progress: Progress) -> None:
        self.tasks, self.progress = tasks, progress

    def show(self) -> None:
        if self.progress.console.is_terminal:
            self._show_table()
            return
        for task in self.tasks:
            self._line(task)

    def changed(self, task: Task) -> None:
        self._line(task)
        if task.state != TRAINING and self.progress.console.is_terminal:
            self._show_table()

    def _line(self, task: Task) -> None:
        done = sum(each.state == RECORDED for each in self.tasks)
        about = f" ({task.why})" if task.why else ""
        self.progress.note(f"[{done}/{len(self.tasks)}] {task.name}: {task.state}{about}")

    def _show_table(self) -> None:
        counts = Counter(task.state for task in self.tasks)
        title = ", ".join(f"{number} {state}" for state, number in counts.items())
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for column in ("run", "state", ""):
            table.add_column(column)
        for task in self.tasks:
            table.add_row(task.name, task.state, task.why.partition("\n")[0])
        self.progress.console.print(table)
