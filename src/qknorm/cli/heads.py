"""``qknorm heads``: what every head does over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qknorm.cli import options
from qknorm.errors import UserError
from qknorm.progress import Progress

if TYPE_CHECKING:
    from qknorm.analysis.text import Text
    from qknorm.run import Run


def heads(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a trained model.")],
    against: options.Against = None,
    corpus: Annotated[
        options.Corpus, typer.Option(help="Which text of the run to look at.")
    ] = options.Corpus.dev,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Other text to look at, instead of --corpus.")
    ] = None,
    target: Annotated[Path | None, typer.Option(metavar="FILE", help="Its translation.")] = None,
    sentences: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N pairs; all if not given.")
    ] = None,
    importance: Annotated[
        bool, typer.Option(help="Mask one head at a time; takes as many passes as there are heads.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for a page, its figures and all numbers.")
    ] = None,
    device: options.Device = None,
) -> None:
    """Say what every head does over a corpus: how sharp it is, where it looks, whether it is needed.

    Of each head: mean entropy, the share of saturated rows (one weight above 0.99), the distance it looks
    over, its weight on the previous, same and next position, on the end of the sentence and on punctuation,
    how far apart it is from the other heads (Jensen–Shannon), and how much the loss on this text rises
    without it. Of each module: g and the largest logit. With --against the distributions of two runs are
    compared. The folder of --out gets heads.md with figures, and heads.json.

    \b
      qknorm heads runs/qknorm --out heads
      qknorm heads runs/qknorm --against runs/baseline --out heads
      qknorm heads runs/qknorm --source news.en --target news.vi --no-importance
    """
    from qknorm.analysis.contrast import contrast
    from qknorm.analysis.study import study_heads
    from qknorm.analysis.study_page import tables, write_folder
    from qknorm.analysis.text import run_names
    from qknorm.run import Run

    if out is not None:
        options.check_folder(out)
    chosen = options.check_device(device) or options.default_device()
    progress = Progress()
    runs = [Run.open(path) for path in ([run] if against is None else [run, against])]
    texts = [_text(each, corpus, source, target).without_blanks(sentences) for each in runs]
    if texts[0] != texts[-1]:
        raise UserError(
            f"The two runs have different {corpus.value} text; name one with --source and --target."
        )
    studies = []
    for folder, name, text in zip(runs, run_names(runs), texts, strict=True):
        options.say_first_of(folder.path, "Heads are")
        progress.note(f"{name}: {len(text):,} {'pair' if len(text) == 1 else 'pairs'} of {text.name}")
        model, subwords = folder.model("best", chosen), folder.subwords()
        studies.append(study_heads(model, subwords, text, name, importance=importance, progress=progress))
    compared = [] if against is None else contrast(studies[0], studies[1])
    for table in tables(studies, compared):
        print(table)
    for study in studies:
        print(f"{study.run}: loss {study.loss:.4f} nats a target subword")
    if out is not None:
        write_folder(out, studies, compared)
        progress.note(f"The page: {out / 'heads.md'}")


def _text(run: Run, corpus: options.Corpus, source: Path | None, target: Path | None) -> Text:
    from qknorm.analysis.text import file_text, split_text

    if (source is None) != (target is None):
        missing = "--target" if target is None else "--source"
        raise UserError(f"{missing} is missing: name both sides of the text, or neither.")
    if source is not None and target is not None:
        return file_text(source, target)
    return split_text(run, corpus.value)
