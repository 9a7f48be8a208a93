"""``qknorm info``: what a run folder holds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qknorm.cli import options
from qknorm.clock import clock

if TYPE_CHECKING:
    from rich.table import Table

    from qknorm.run import Run

COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "epoch": lambda row: f"{row['epoch']}{'*' if row['best'] else ' '}",
    "update": lambda row: f"{row['step']}",
    "loss": lambda row: f"{row['train_loss']:.3f}",
    "dev ppl": lambda row: f"{row['dev_perplexity']:.2f}",
    "dev BLEU": lambda row: "-" if row["dev_bleu"] is None else f"{row['dev_bleu']:.2f}",
    "rate": lambda row: f"{row['learning_rate']:.2e}",
    "g": lambda row: "-" if row["g_min"] is None else f"{row['g_min']:.1f}…{row['g_max']:.1f}",
    "ms/step": lambda row: f"{row['ms_per_step']:.{1 if row['ms_per_step'] < 100 else 0}f}",
    "tokens/s": lambda row: f"{row['tokens_per_second']:.0f}",
    "waiting": lambda row: f"{row['waiting_share']:.1%}",
}
"""What is shown of an epoch."""

SHOWN = 20
"""How many of the latest epochs are shown."""


def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    as_json: options.Json = False,
) -> None:
    """Show what a run folder holds: settings, facts about the text, the history, scores, sizes of files.

    Of each epoch: loss, dev perplexity and BLEU, the learning rate, the smallest and largest g, the time of
    an update, tokens a second, and the share of time spent waiting for data; a star marks those that were
    the best so far. The latest 20 are shown; --json prints everything.

    \b
      qknorm info runs/gl-en
    """
    from qknorm.run import Run

    folder = Run.open(run)
    about = summary(folder)
    if as_json:
        print(json.dumps(about, indent=2, ensure_ascii=False))
    else:
        _show(folder, about)


def summary(run: Run) -> dict[str, Any]:
    """Everything a run folder says about itself, in JSON's types."""
    manifest, history = run.manifest(), run.history()
    return {
        "run": str(run.path),
        "recipe": run.recipe().model_dump(mode="json"),
        **{key: manifest[key] for key in ("created", "versions", "commit", "machine", "corpus", "facts")},
        "finished": run.scores() is not None,
        "seconds": None if run.scores() is None else manifest.get("seconds"),  # older runs do not tell
        "history": history,
        "best": _best(history),
        "members": [_member(run.member(number)) for number in range(2, len(run.members()) + 1)],
        "scores": run.scores(),
        "files": {entry.name: _bytes(entry) for entry in sorted(run.path.iterdir())},
    }


def _best(history: list[dict[str, Any]]) -> dict[str, Any] | None:
    return next((row for row in reversed(history) if row["best"]), None)


def _member(run: Run) -> dict[str, Any]:
    """What is told of a further model that translates together with the first."""
    history = run.history() if run.exists else []
    seed = run.manifest()["seed"] if run.exists else None
    return {"run": str(run.path), "seed": seed, "history": history, "best": _best(history)}


def _bytes(entry: Path) -> int:
    """The size of a file, or of all files in a folder."""
    files = entry.rglob("*") if entry.is_dir() else [entry]
    return sum(file.stat().st_size for file in files if file.is_file())


def _show(run: Run, about: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    whole = run.whole()
    if whole is not None:
        state = f"one of the models of {whole.path}, where they are scored together"
    elif about["finished"]:
        state = "finished"
    else:
        state = f"not finished; go on with: qknorm train --run {shlex.quote(about['run'])}"
    console.print(f"{about['run']}: begun {about['created']}, {state}", markup=False)
    for line in _described(run):
        console.print(line, markup=False)
    console.print(_pairs("Text", about["facts"]))
    console.print(_history(about["history"]))
    if best := about["best"]:
        console.print(f"Best epoch: {_told(best)}")
    for number, member in enumerate(about["members"], 2):
        best = member["best"]
        state = "not trained yet" if best is None else f"seed {member['seed']}, best epoch {_told(best)}"
        console.print(f"Model {number}: {state} ({member['run']})", markup=False)
    if about["seconds"] is not None:
        console.print(f"From the start of the command to the scores: {clock(about['seconds'])}")
    for split, scores in (about["scores"] or {}).items():
        console.print(_pairs(f"Scores of {split}", {k: v for k, v in scores.items() if k != "signatures"}))
    console.print(_pairs("Files", {name: _size(size) for name, size in about["files"].items()}))


def _told(best: dict[str, Any]) -> str:
    bleu = "" if best["dev_bleu"] is None else f", dev BLEU {best['dev_bleu']:.2f}"
    return f"{best['epoch']}{bleu}, dev perplexity {best['dev_perplexity']:.2f}"


def _described(run: Run) -> list[str]:
    """The recipe in a few lines, and what dev has chosen."""
    recipe, decoding = run.recipe(), run.decoding()
    model, training = recipe.model, recipe.training
    by_dev = ""
    if decoding.length_penalty_from_dev:
        by_dev = ", by dev BLEU" if run.decoding_file.exists() else " until dev chooses"
    rate = "from d_model and warm-up" if training.learning_rate is None else f"{training.learning_rate:g}"
    return [
        f"{recipe.name}: {model.encoder_layers}+{model.decoder_layers} layers, width {model.d_model}, "
        f"feed-forward {model.d_ff}, {model.heads} heads, norm {model.norm}, qk_norm {model.qk_norm}, "
        f"{'rotary positions, ' if model.rotary else ''}dropout {model.dropout:g}",
        f"subwords: {recipe.subwords.kind}, {recipe.subwords.operations:,} operations",
        f"training: batches of {training.batch_tokens:,} subwords, {training.optimizer}, rate {rate}, "
        f"{training.schedule} after {training.warmup_steps:,} updates, seed {training.seed}",
        *([] if training.members == 1 else [f"{training.members} models translate together"]),
        f"decoding: beam {decoding.beam}, length penalty {decoding.length_penalty:g}{by_dev}",
    ]


def _history(rows: list[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    title = f"History, the latest {SHOWN} of {len(rows)} epochs" if len(rows) > SHOWN else "History"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows[-SHOWN:]:
        table.add_row(*(show(row) for show in COLUMNS.values()))
    return table


def _pairs(title: str, values: dict[str, Any]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE)
    table.add_column()
    table.add_column(justify="right")
    for name, value in values.items():
        form = ",.4g" if isinstance(value, float) else "," if isinstance(value, int) else ""
        table.add_row(escape(name), "-" if value is None else escape(format(value, form)))
    return table


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
