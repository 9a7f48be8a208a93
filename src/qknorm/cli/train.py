"""``qknorm train`` and ``qknorm prepare``: from text, or a recipe, to a run folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from qknorm.cli import options
from qknorm.cli.recipe import choose_recipe
from qknorm.clock import clock, process_start
from qknorm.progress import Progress

if TYPE_CHECKING:
    from qknorm.training import Prepared


def train(
    recipe_file: options.RecipeFile = None,
    run: options.RunFolder = None,
    overrides: options.Overrides = None,
    source: options.Source = None,
    target: options.Target = None,
    dev_source: options.DevSource = None,
    dev_target: options.DevTarget = None,
    test_source: options.TestSource = None,
    test_target: options.TestTarget = None,
    subwords: options.SubwordKind = None,
    device: options.Device = None,
) -> None:
    """Train a model into a run folder, by a recipe or from two text files.

    Without a recipe, settings are chosen by the size of the text, and it is said which and why. Ctrl-C saves
    and ends with exit code 130; the same command, or --run DIR alone, goes on where it stopped. When
    training is over, dev and test text are translated and scored.

    \b
      qknorm train --source train.gl --target train.en --run runs/gl-en
      qknorm train recipes/paper/gl-en.yaml --set training.seed=2 --run runs/gl-en-2
      qknorm train --run runs/gl-en
      torchrun --nproc-per-node=8 -m qknorm train --run-folder runs/gl-en
    """
    from qknorm.run import Run
    from qknorm.training import train as train_model
    from qknorm.workers import Workers

    begun = process_start()
    files = _files(source, target, dev_source, dev_target, test_source, test_target)
    with Workers.start(options.check_device(device)) as workers:
        progress = Progress(quiet=not workers.first, since=begun)
        with workers.first_alone():
            chosen = recipe_file, files, subwords, run, overrides or []
            recipe, folder = choose_recipe(*chosen, progress, device)
        progress.note(f"Run folder: {folder}")
        try:
            trained = train_model(recipe, folder, progress=progress, workers=workers, begun=begun)
        except KeyboardInterrupt:  # between updates it is heeded there; here nothing is under way to be lost
            if workers.size == 1:
                there = Run(folder).exists
                go_on = f" Go on with: qknorm train --run {shlex.quote(str(folder))}" if there else ""
                progress.note(f"Stopped; nothing that was trained is lost.{go_on}")
            raise
    if trained.interrupted:
        raise typer.Exit(130)
    if workers.first:
        if seconds := trained.run.manifest().get("seconds"):
            took = f"From the start of the command to the scores: {clock(seconds)}"
            progress.note(f"{took} (all starts of the run together)")
        _say_end(trained.scores or {}, folder)


def _say_end(scores: dict[str, Any], folder: Path) -> None:
    for split, figures in scores.items():
        print(f"{split}: {_figures(figures)}")
    print(f"Translate with: qknorm translate {shlex.quote(str(folder))} FILE")


def prepare(
    recipe_file: options.RecipeFile = None,
    run: options.RunFolder = None,
    overrides: options.Overrides = None,
    source: options.Source = None,
    target: options.Target = None,
    dev_source: options.DevSource = None,
    dev_target: options.DevTarget = None,
    test_source: options.TestSource = None,
    test_target: options.TestTarget = None,
    subwords: options.SubwordKind = None,
) -> None:
    """Check and encode the text, and print what the model would have to learn from and its size.

    Takes what `qknorm train` takes and does its first part alone: problems in the files are listed with
    their lines, subwords are learned, everything is encoded. A later `qknorm train` finds it done.

    \b
      qknorm prepare --source train.gl --target train.en
    """
    from qknorm.training import prepare as prepare_data

    progress = Progress()
    files = _files(source, target, dev_source, dev_target, test_source, test_target)
    recipe, folder = choose_recipe(recipe_file, files, subwords, run, overrides or [], progress)
    prepared = prepare_data(recipe, folder / "data", progress)
    for label, value in _facts(prepared):
        print(f"{label:<24}{value:>14}")
    print(f"\n{_number(len(prepared.report.warnings), 'warning')}", *prepared.report.warnings, sep="\n")


def _files(
    source: Path | None,
    target: Path | None,
    dev_source: Path | None,
    dev_target: Path | None,
    test_source: Path | None,
    test_target: Path | None,
) -> dict[str, Path | None]:
    return {
        "train_source": source,
        "train_target": target,
        "dev_source": dev_source,
        "dev_target": dev_target,
        "test_source": test_source,
        "test_target": test_target,
    }


def _facts(prepared: Prepared) -> list[tuple[str, str]]:
    """The rows of the paper's Table 1, and what else there is to know before training."""
    from qknorm.run import count_parameters

    facts: dict[str, Any] = prepared.facts()
    length, g0 = facts["L"], facts["g0"]
    rows = [
        ("examples", f"{facts['examples']:,}"),
        ("tokens", f"{facts['tokens']:,}"),
        ("subwords", f"{facts['vocabulary']:,}"),
        ("  of the source side", f"{facts['source_subwords']:,}"),
        ("  of the target side", f"{facts['target_subwords']:,}"),
        ("parameters", f"{count_parameters(prepared.recipe, prepared.subwords):,}"),
        ("L", "-" if length is None else f"{length:g}"),
        ("g₀", "-" if g0 is None else f"{g0:.4f}"),
        ("subword tokens", f"{facts['subword_tokens']:,}"),
        ("unknown subwords", f"{facts['unk_rate']:.3%}"),
    ]
    rows += [
        (f"{split} pairs", f"{facts[f'{split}_pairs']:,}")
        for split in ("dev", "test")
        if split in prepared.encoded
    ]
    return rows


def _figures(scores: dict[str, Any]) -> str:
    from qknorm.scoring.render import LABELS

    named = [f"{label} {scores[name]:.2f}" for name, (label, _) in LABELS.items() if name in scores]
    return "; ".join(named)


def _number(count: int, noun: str) -> str:
    return {0: f"No {noun}s.", 1: f"1 {noun}:"}.get(count, f"{count} {noun}s:")
