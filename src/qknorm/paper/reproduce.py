"""``qknorm reproduce``: train the rows that are missing, keep what they gave, and write the pages."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qknorm.data import write_atomic
from qknorm.errors import UserError
from qknorm.paper import tasks as states
from qknorm.paper.board import Board
from qknorm.paper.experiments import FIGURE1, TARGETS, Target
from qknorm.paper.figure import draw_heads
from qknorm.paper.front import render_front
from qknorm.paper.page import render_page
from qknorm.paper.plan import Experiment, experiment, wanted_rows
from qknorm.paper.records import RUNS, Record, find_twin, forget_failure, keep, keep_failure, set_aside
from qknorm.paper.runner import train_in_turn, train_side_by_side
from qknorm.paper.summary import Group, Summary, read_summary
from qknorm.paper.tasks import Task, make_task
from qknorm.progress import Progress
from qknorm.run import Run


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    targets: Sequence[Target]
    pairs: Sequence[str] = ()
    systems: Sequence[str] = ()
    seeds: Sequence[int] = (1,)
    kind: str = "paper"
    overrides: tuple[str, ...] = ()
    data: Path = Path("data")
    runs: Path = Path("runs/paper")
    results: Path = Path("results")
    jobs: int = 1
    device: str | None = None
    trains: bool = True
    progress: Progress = field(default_factory=Progress)

    @property
    def group(self) -> Group:
        return Group(self.kind, self.overrides)


@dataclass(frozen=True)
class Reproduced:
    """How it ended: every experiment, and whether it was stopped on the way."""

    tasks: list[Task]
    interrupted: bool


def reproduce(wish: Wish) -> Reproduced:
    """Train what is missing and write the pages, after every finished row and at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "Rows are trained by one process each; start reproduce without torchrun, with --jobs."
        )
    wish.results.mkdir(parents=True, exist_ok=True)
    if not wish.trains:
        write_pages(wish)
        return Reproduced([], False)
    tasks = [_task(asked, wish) for asked in _experiments(wish.targets, wish)]
    board = Board(tasks, wish.progress)
    board.show()
    for task in tasks:
        if task.state == states.FINISHED:
            _keep(task, wish)
        elif task.state == states.RECORDED:
            forget_failure(wish.results, task.experiment)
    write_pages(wish)

    def report(task: Task) -> None:
        if task.state == states.TRAINING:
            board.changed(task)
            return
        same = [each for each in tasks if each.waiting and each.hash == task.hash]
        for each in same:
            each.run, each.state, each.why = task.run, task.state, task.why
        for each in (task, *same):
            _settle(each, wish)
        write_pages(wish)
        for each in (task, *same):
            board.changed(each)

    missing = _first_of_each(task for task in tasks if task.waiting)
    if wish.jobs > 1 and len(missing) > 1:
        done = train_side_by_side(missing, wish.jobs, wish.device, report)
    else:
        done = train_in_turn(missing, wish.device, wish.progress, report)
    if done and FIGURE1 in wish.targets:
        _draw(tasks, wish)
    return Reproduced(tasks, not done)


def write_pages(wish: Wish, image: dict[str, Any] | None = None) -> None:
    """The JSON and the page of every target asked for or written before, and the front page."""
    summary = Summary(wish.results, wish.data)
    for target in TARGETS.values():
        file = wish.results / f"{target.name}.json"
        if target not in wish.targets and read_summary(file) is None:
            continue
        asked = [wish.group] if target in wish.targets and wish.trains else []
        built = summary.build(target, asked)
        if target is FIGURE1:
            built["image"] = image or _drawn_before(file, built)
        write_atomic(file, json.dumps(built, indent=1, ensure_ascii=False) + "\n")
        write_atomic(file.with_suffix(".md"), render_page(built))
    write_atomic(wish.results / "README.md", render_front(wish.results))


def _experiments(targets: Iterable[Target], wish: Wish) -> list[Experiment]:
    """Every training that is needed, once; the first seed of all rows before the second of any."""
    found: dict[Experiment, None] = {}
    for seed in wish.seeds:
        for target in targets:
            for row in wanted_rows(target, wish.pairs, wish.systems):
                found[experiment(row, wish.kind, seed, wish.overrides)] = None
    return list(found)


def _first_of_each(tasks: Iterable[Task]) -> list[Task]:
    """One task of those that are the same training under several names."""
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(task.hash, task)
    return list(first.values())


def _task(asked: Experiment, wish: Wish) -> Task:
    needs = FIGURE1 in wish.targets and asked in _experiments([FIGURE1], wish) and not _is_drawn(asked, wish)
    return make_task(asked, wish.data, wish.runs, wish.results, weights=needs)


def _settle(task: Task, wish: Wish) -> None:
    """Keep what a training gave, or why it failed."""
    if task.state == states.FINISHED:
        _keep(task, wish)
    else:
        keep_failure(wish.results, task.experiment, task.run, task.why)


def _keep(task: Task, wish: Wish) -> None:
    assert task.corpus is not None  # it was trained
    aside = set_aside(wish.results, task.experiment, task.hash)
    task.why = "" if aside is None else f"what was kept before is now in {aside}"
    if find_twin(wish.results, task.experiment, task.recipe, task.corpus) is None:
        keep(wish.results, task.experiment, task.run, task.hash, task.corpus)
    else:
        forget_failure(wish.results, task.experiment)
    task.state = states.RECORDED


def _drawn_before(file: Path, built: dict[str, Any]) -> dict[str, Any] | None:
    """The picture there is, if it is of these very runs."""
    before = (read_summary(file) or {}).get("image")
    if before is None or not (file.parent / before["file"]).is_file():
        return None
    known = {
        each for group in built["groups"] for row in group["rows"] for each in row.get("experiments", ())
    }
    return dict(before) if set(before["experiments"]) <= known else None


def _is_drawn(asked: Experiment, wish: Wish) -> bool:
    """Whether the picture of this seed and these settings is there already."""
    before = (read_summary(wish.results / "figure1.json") or {}).get("image") or {}
    there = (wish.results / before.get("file", "figure1.png")).is_file()
    return there and asked.name in before.get("runs", ())


def _draw(tasks: Sequence[Task], wish: Wish) -> None:
    """The picture of the first seed's two models."""
    wanted = _experiments([FIGURE1], wish)[: len(FIGURE1.rows)]
    if len(wanted) < len(FIGURE1.rows):
        return
    by_name = {task.name: task for task in tasks}
    shown = [by_name[asked.name] for asked in wanted]
    if any(task.state != states.RECORDED for task in shown) or all(_is_drawn(each, wish) for each in wanted):
        return
    if len({task.hash for task in shown}) < len(shown):
        wish.progress.note("Figure 1 is not drawn: with these settings its two models are one training.")
        return
    runs = {row.label: Run(task.run.path) for row, task in zip(FIGURE1.rows, shown, strict=True)}
    image = draw_heads(runs, wish.results / "figure1")
    kept = [Record(wish.results / RUNS / task.name) for task in shown]
    image |= {
        "runs": [each.name for each in kept],
        "experiments": [each.about["experiment"] for each in kept],
    }
    write_pages(wish, image)
