"""All commands under one name. Nothing here imports torch, so that ``--help`` comes at once."""

from __future__ import annotations

from typing import Annotated

import typer

from qknorm import __version__
from qknorm.cli import attention, data, demo, heads, info, report, reproduce, score, serve, train, translate

app = typer.Typer(
    name="qknorm",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"qknorm {__version__}")
        raise typer.Exit


@app.callback()
def qknorm(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Machine translation for little data, with query-key normalised attention.

    From two text files, line n of one the translation of line n of the other, to a translator:

    \b
      qknorm train --source train.gl --target train.en --run runs/gl-en
      qknorm translate runs/gl-en news.gl > news.en
      qknorm score news.en reference.en --raw

    Without files of your own, see it work in a few minutes with `qknorm demo`. Progress is written to
    standard error and results to standard output. Exit codes: 0 done, 2 a mistake in what was asked (a
    sentence says which), 130 stopped by Ctrl-C.
    """


app.command(short_help="Train a model, by a recipe or from two text files.")(train.train)
app.command(short_help="Check and encode the text, and count.")(train.prepare)
app.command(short_help="Translate text with a trained model.")(translate.translate)
app.command(short_help="Score translations: BLEU, chrF, TER.")(score.score)
app.command(short_help="Whether one system is better than another.")(score.compare)
app.command(short_help="Show what a run folder holds.")(info.info)
app.command(short_help="Draw what each head attends to in a sentence.")(attention.attention)
app.command(short_help="Say what every head does over a corpus.")(heads.heads)
app.command(short_help="Write one page about a run, or about two.")(report.report)
app.command(short_help="Try trained models in the browser, or over HTTP.")(serve.serve)
app.add_typer(data.app, name="data", short_help="Get text to learn from.")
app.command(short_help="See it work on built-in text.")(demo.demo)
app.command(short_help="Train the paper's tables and figures anew.")(reproduce.reproduce)
