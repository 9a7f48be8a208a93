"""``qknorm translate``: lines in, lines out."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from qknorm.cli import options
from qknorm.errors import UserError


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def translate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a trained model.")],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Text, plain or gzip'd; standard input if not given.", show_default=False
        ),
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(
            "--ensemble",
            metavar="RUN",
            help="Another run with the same subwords to translate together with; may be repeated.",
        ),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Hypotheses kept at every step; 1 is greedy search.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, callback=_finite, help="α; more of it favours longer translations.")
    ] = None,
    nbest: Annotated[
        int | None, typer.Option(min=1, help="Print up to this many translations of each line, best first.")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Print the score of each translation.")] = False,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Bound on memory, in subwords of a batch.")
    ] = None,
    precision: Annotated[
        options.Precision,
        typer.Option(help="bfloat16 is faster on a GPU; some translations differ from those of float32."),
    ] = options.Precision.float32,
    device: options.Device = None,
) -> None:
    """Translate text line for line: line n of the output is the translation of line n of the input.

    Blank lines stay blank. Lines typed or piped in one by one are answered one by one. What is not given is
    as the run's recipe has it. With --nbest or --scores every output line has three columns separated by
    tabs: the number of the input line from 1, the score (the log-probability over the length penalty; 0 for a
    blank line) and the translation.

    \b
      echo "unha frase" | qknorm translate runs/gl-en
      qknorm translate runs/gl-en news.gl --beam 8 > news.en
      qknorm translate runs/gl-en news.gl --nbest 4
      qknorm translate runs/gl-en news.gl --precision bfloat16 > news.en
      qknorm translate runs/gl-en --ensemble runs/gl-en-2 < news.gl
      torchrun --nproc-per-node=8 -m qknorm translate runs/gl-en news.gl > news.en
    """
    import torch

    from qknorm.data import line_groups, lines
    from qknorm.translation.translator import CHUNK, Translator
    from qknorm.workers import Workers

    with Workers.start(options.check_device(device)) as workers:
        if file is None and workers.size > 1:
            raise UserError("Several processes cannot share standard input; name a FILE to translate.")
        translator = Translator.load(
            [run, *(ensemble or [])], workers.device, dtype=getattr(torch, precision.value)
        )
        if workers.first:
            _say_missing([run, *(ensemble or [])])
        search = beam, length_penalty, nbest or 1, batch_tokens
        if file is None:
            found = translator.stream_groups(line_groups(sys.stdin.fileno(), CHUNK), *search)
        else:
            found = translator.stream(lines(file), *search, workers=workers)
        with_columns = scores or nbest is not None
        for number, translations in enumerate(found, 1):
            rows = [(each.score, each.text) for each in translations] or [(0.0, "")]
            for score, line in rows if workers.first else []:
                _write(f"{number}\t{score:.6f}\t{line}" if with_columns else line)


def _say_missing(runs: list[Path]) -> None:
    """Tell of runs whose models are not all trained yet."""
    from qknorm.run import Run

    for run in runs:
        if missing := Run.open(run).missing_members():
            typer.echo(missing, err=True)


def _write(line: str) -> None:
    """A line to standard output at once, in UTF-8 whatever the terminal's own encoding."""
    sys.stdout.buffer.write(line.encode("utf-8") + b"\n")
    sys.stdout.buffer.flush()
