"""``qknorm data``: corpora to learn from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qknorm.cli import options

if TYPE_CHECKING:
    from qknorm.data.corpus import Corpus
    from qknorm.data.download import Progress as Report

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Get text to learn from: named corpora, the built-in phrasebook, or what trained models add to it.",
)

To = Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to put the files in.")]


@app.command("list")
def list_() -> None:
    """List the named corpora that `qknorm data get` knows.

    \b
      qknorm data list
    """
    from qknorm.data.corpora import list_corpora

    for corpus in list_corpora():
        print(f"{corpus.name:<16} {corpus.state:<6} {corpus.about}")
    print(f"{'ted-xx-en':<16} {'words':<6} any other language xx of the TED Talks corpus")
    print("`qknorm data phrasebook` makes a small corpus without a download.")


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A corpus of `qknorm data list`.")],
    to: To,
    from_dir: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="Use files that are already there; nothing is downloaded."
        ),
    ] = None,
) -> None:
    """Download a named corpus, check it, and lay it out as train, dev and test.

    A download that broke off goes on where it stopped. What is there already is checked and kept.

    \b
      qknorm data get iwslt15-en-vi --to data/iwslt15-en-vi
      qknorm data get ted-gl-en --to data/ted-gl-en --from downloads
    """
    from qknorm.data.corpora import get_corpus

    with _download_bars() as report:
        corpus = get_corpus(name, to, from_dir, progress=report)
    _say(corpus)


@app.command()
def phrasebook(
    to: To,
    pair: Annotated[
        str, typer.Option(help="English with gl, sk, ar, he or vi, in either direction.")
    ] = "en-gl",
    train: Annotated[int, typer.Option(min=1, help="Training pairs.")] = 10_000,
    dev: Annotated[int, typer.Option(min=0, help="Dev pairs.")] = 500,
    test: Annotated[int, typer.Option(min=0, help="Test pairs.")] = 500,
    seed: Annotated[int, typer.Option(help="Decides which phrases.")] = 1,
) -> None:
    """Make the built-in parallel corpus: dates, lists, amounts and measures, from Unicode's CLDR.

    The same pair, sizes and seed give the same text. No test phrase is in the training text.

    \b
      qknorm data phrasebook --pair en-gl --to data/phrasebook-en-gl
    """
    from qknorm.data.phrasebook import write_phrasebook

    _say(write_phrasebook(pair, to, train=train, dev=dev, test=test, seed=seed))


@app.command()
def augment(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Trained models; the first says which text it is about."),
    ],
    to: To,
    source_text: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="More text of the source language alone; may be repeated."),
    ] = None,
    target_text: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="More text of the target language alone; may be repeated."),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Hypotheses kept at every step; as in each run's recipe else.")
    ] = None,
    precision: Annotated[
        options.Precision, typer.Option(help="bfloat16 is faster on a GPU.")
    ] = options.Precision.float32,
    device: options.Device = None,
) -> None:
    """Let trained models translate their own training text, and join what they say to it as more pairs.

    A run trained the other way round on the same text translates its other side. Text of one language alone
    is translated by the runs that read it (back-translation). Stopped by Ctrl-C, the same command goes on.
    Dev and test text stay as they are.

    \b
      qknorm train gl-en.yaml --run runs/gl-en
      qknorm train gl-en.yaml --run runs/en-gl --set data.source=en --set data.target=gl
      qknorm data augment runs/gl-en runs/en-gl --to data/gl-en-more
      qknorm train gl-en.yaml --run runs/gl-en-more --set data.folder=data/gl-en-more
      qknorm data augment runs/gl-en runs/en-gl --target-text news.en --to data/gl-en-news
    """
    import time

    from qknorm.progress import Progress
    from qknorm.translation.augment import Search
    from qknorm.translation.augment import augment as make
    from qknorm.workers import Workers

    options.check_folder(to)
    search = Search(beam, precision.value)
    texts = {"source_text": source_text or (), "target_text": target_text or ()}
    progress = Progress(since=time.monotonic())
    with Workers.start(options.check_device(device)) as workers:
        try:
            corpus = make(runs, to, **texts, search=search, workers=workers, progress=progress)
        except KeyboardInterrupt:
            progress.note("Stopped; what was translated is kept. The same command goes on.")
            raise
        if corpus is not None:
            _say(corpus)


def _say(corpus: Corpus) -> None:
    print(corpus.note)
    for split, (source, target) in corpus.paths.items():
        print(f"{split:<6}{corpus.counts[split]:>9,} pairs   {source} {target}")
    named = [
        word
        for split, paths in corpus.paths.items()
        for side, path in zip(("source", "target"), paths, strict=True)
        for word in (f"--{side}" if split == "train" else f"--{split}-{side}", str(path))
    ]
    print(f"Train with: qknorm train {shlex.join(named)} --subwords {corpus.state}")


@contextmanager
def _download_bars() -> Iterator[Report]:
    """A bar for each file, on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    tasks = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def report(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=have, total=total)

        yield report
