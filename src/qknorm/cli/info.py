"""``qknorm info``: what a run folder holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qknorm.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from qknorm.config import Recipe
    from qknorm.run import Run

COLUMNS = {
    "epoch": "{}",
    "step": "{:,}",
    "train_loss": "{:.3f}",
    "dev_perplexity": "{:.2f}",
    "dev_bleu": "{:.2f}",
    "learning_rate": "{:.2e}",
    "g_min": "{:.2f}",
    "g_max": "{:.2f}",
    "ms_per_step": "{:.0f}",
    "tokens_per_second": "{:,.0f}",
    "waiting_share": "{:.1%}",
}
"""What is shown of an epoch, and how; `--json` has all of it."""


def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    as_json: options.Json = False,
) -> None:
    """Show what a run folder holds: settings, facts about the text, the history, scores, sizes of files.

    Of each epoch: loss, dev perplexity and BLEU, the learning rate, the smallest and largest g, the time of
    an update, tokens a second, and the share of time spent waiting for data. --json prints everything.

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
        "history": history,
        "best": next((row for row in reversed(history) if row["best"]), None),
        "scores": run.scores(),
        "files": {
            file.relative_to(run.path).as_posix(): file.stat().st_size
            for file in sorted(run.path.rglob("*"))
            if file.is_file()
        },
    }


def _show(run: Run, about: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in _described(run.recipe()):
        console.print(line, markup=False)
    state = "finished" if about["finished"] else "not finished; go on with qknorm train --run " + about["run"]
    console.print(f"{about['run']}: begun {about['created']}, {state}", markup=False)
    console.print(_pairs("Text", about["facts"]))
    console.print(_history(about["history"]))
    if best := about["best"]:
        bleu = "" if best["dev_bleu"] is None else f", dev BLEU {best['dev_bleu']:.2f}"
        console.print(f"Best epoch: {best['epoch']}{bleu}, dev perplexity {best['dev_perplexity']:.2f}")
    for split, scores in (about["scores"] or {}).items():
        console.print(_pairs(f"Scores of {split}", {k: v for k, v in scores.items() if k != "signatures"}))
    console.print(_pairs("Files", {name: _size(size) for name, size in about["files"].items()}))


def _described(recipe: Recipe) -> list[str]:
    """The recipe in a few lines."""
    model, training, decoding = recipe.model, recipe.training, recipe.decoding
    rate = "from d_model and warm-up" if training.learning_rate is None else f"{training.learning_rate:g}"
    return [
        f"{recipe.name}: {model.encoder_layers}+{model.decoder_layers} layers, width {model.d_model}, "
        f"feed-forward {model.d_ff}, {model.heads} heads, norm {model.norm}, qk_norm {model.qk_norm}, "
        f"dropout {model.dropout:g}",
        f"subwords: {recipe.subwords.kind}, {recipe.subwords.operations:,} operations",
        f"training: batches of {training.batch_tokens:,} subwords, {training.optimizer}, rate {rate}, "
        f"{training.schedule} after {training.warmup_steps:,} updates, seed {training.seed}",
        f"decoding: beam {decoding.beam}, length penalty {decoding.length_penalty:g}",
    ]


def _history(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(title="History", title_justify="left")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        shown = [_cell(form, row.get(column)) for column, form in COLUMNS.items()]
        table.add_row(*shown, style="bold" if row["best"] else None)
    return table


def _pairs(title: str, values: dict[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in values.items():
        form = "{:,}" if isinstance(value, int) else "{:.4g}" if isinstance(value, float) else "{}"
        table.add_row(escape(name), escape(_cell(form, value)))
    return table


def _cell(form: str, value: Any) -> str:
    return "-" if value is None else form.format(value)


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
