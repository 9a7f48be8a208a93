"""``qknorm reproduce``: the paper's tables and figures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qknorm.cli import options
from qknorm.errors import UserError
from qknorm.progress import Progress


class RecipeKind(StrEnum):
    """Which recipes rows are trained by."""

    paper = "paper"
    fast = "fast"


def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="table1 … table6, figure1, annotated, beyond, or all of the paper's."
        ),
    ],
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder with a folder for each corpus.")] = Path(
        "data"
    ),
    pairs: Annotated[
        str | None, typer.Option(metavar="PAIR,…", help="Only rows of these pairs, such as en-vi,gl-en.")
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help="Only rows of these systems, such as qknorm,baseline,heads-16."),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="SEED,…", help="Train each row with each of these.")] = "1",
    recipe: Annotated[
        RecipeKind, typer.Option(help="The paper's settings, or those that train in minutes.")
    ] = RecipeKind.paper,
    jobs: Annotated[int, typer.Option(min=1, help="Rows trained at a time.")] = 1,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting of all rows; their results are kept apart. May be repeated.",
        ),
    ] = None,
    device: options.Device = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where run folders go.")] = Path("runs/paper"),
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where pages and records go.")] = Path(
        "results"
    ),
    pages_only: Annotated[
        bool, typer.Option("--pages-only", help="Train nothing; write the pages from what is recorded.")
    ] = False,
) -> None:
    """Train the rows of a table of the paper that are missing, and write results/TARGET.md and .json.

    A row that was trained before, with the same settings on the same text, is not trained again. Ctrl-C saves
    and ends with exit code 130; the same command goes on where it stopped. Rows whose corpus is not under
    --data are listed as not run, with the command that gets it. What is behind each figure is kept in
    results/runs, without weights; results/README.md is the page to read.

    \b
      qknorm reproduce table2 --pairs en-vi --recipe fast --seeds 1,2,3
      qknorm reproduce table6 --recipe fast --jobs 2
      qknorm reproduce all --pages-only
    """
    from qknorm.paper import Wish, check_overrides, check_systems, choose_targets
    from qknorm.paper import reproduce as reproduce_rows

    wanted, named = _listed(pairs), _listed(systems)
    targets = choose_targets(target, wanted)
    check_systems(named, targets, wanted)
    wish = Wish(
        targets=targets,
        pairs=wanted,
        systems=named,
        seeds=_seeds(seeds),
        kind=recipe.value,
        overrides=check_overrides(overrides or []),
        data=data,
        runs=runs,
        results=results,
        jobs=jobs,
        device=options.check_device(device),
        trains=not pages_only,
        progress=Progress(),
    )
    try:
        ended = reproduce_rows(wish)
    except KeyboardInterrupt:
        wish.progress.note("Stopped; nothing that was saved is lost. The same command goes on.")
        raise typer.Exit(130) from None
    for each in wish.targets:
        print(results / f"{each.name}.md")
    print(results / "README.md")
    if ended.interrupted:
        wish.progress.note("Stopped; all is saved. The same command goes on.")
        raise typer.Exit(130)
    failed = [task for task in ended.tasks if task.state == "failed"]
    if failed:
        raise UserError("\n".join(f"{task.name} failed: {task.why}" for task in failed))


def _listed(words: str | None) -> list[str]:
    return [] if words is None else [word.strip() for word in words.split(",") if word.strip()]


def _seeds(words: str) -> list[int]:
    found = _listed(words)
    if not found or not all(word.isdecimal() for word in found):
        raise UserError(f'--seeds "{words}" is not a list of whole numbers; write it as --seeds 1,2,3.')
    return list(dict.fromkeys(map(int, found)))
