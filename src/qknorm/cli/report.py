"""``qknorm report``: a run on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qknorm.cli import options
from qknorm.errors import UserError
from qknorm.progress import Progress


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a trained model.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="The page to write.")],
    against: options.Against = None,
    corpus: Annotated[
        options.Corpus | None,
        typer.Option(help="Whose translations to show; test where there is one.", show_default=False),
    ] = None,
    maps: Annotated[int, typer.Option(min=0, metavar="N", help="Sentences with heat maps.")] = 6,
    device: options.Device = None,
) -> None:
    """Write one page about a run, or two runs side by side, that opens from disk without a network.

    It has the curves of training, scores with 95% intervals (and, of two runs, p-values), every sentence
    sorted by gain and loss with the words that differ, accuracy by the frequency of a word in training and by
    the length of a sentence, heat maps to step through, g and the largest logits.

    \b
      qknorm report runs/qknorm --out report.html
      qknorm report runs/qknorm --against runs/baseline --out report.html
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{out} must end in .html: the report is a page.")
    options.check_file(out)
    from qknorm.analysis.report import write_report
    from qknorm.run import Run

    runs = [Run.open(path) for path in ([run] if against is None else [run, against])]
    chosen = options.check_device(device) or options.default_device()
    progress = Progress()
    for each in runs:
        options.say_first_of(each.path, f"Curves and maps of {each.path} are")
    write_report(out, runs, None if corpus is None else corpus.value, maps, chosen, progress)
    progress.note(f"The report: {out}")
