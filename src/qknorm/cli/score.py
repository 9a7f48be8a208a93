"""``qknorm score`` and ``qknorm compare``: how good translations are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from qknorm.cli import options

References = Annotated[Path, typer.Argument(metavar="REF", help="Reference translations, line for line.")]


def score(
    hypotheses: Annotated[Path, typer.Argument(metavar="HYP", help="Translations, one a line.")],
    references: References,
    raw: options.Raw = False,
    ter: Annotated[
        bool, typer.Option("--ter/--no-ter", help="TER takes most of the time; leave it out.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Score translations against references: BLEU, chrF and TER, each with its sacrebleu signature.

    Of tokenised text the paper's three BLEUs are printed: tokenised (multi-bleu.perl's), 13a
    (multi-bleu-detok.perl's), and SacreBLEU after detokenising both sides. Of ordinary text (--raw) it is
    plain SacreBLEU. Files may be gzip'd.

    \b
      qknorm score news.en reference.en --raw
      qknorm score runs/gl-en/hypotheses/test.txt test.en --json
    """
    from qknorm.scoring import render_scores
    from qknorm.scoring import score as score_files

    scores = score_files(hypotheses, references, "raw" if raw else "words", ter)
    print(_json(scores.to_json()) if as_json else render_scores(scores))


def compare(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE_HYP", help="Translations of one system.")],
    system: Annotated[Path, typer.Argument(metavar="SYSTEM_HYP", help="Translations of the other.")],
    references: References,
    raw: options.Raw = False,
    samples: Annotated[int, typer.Option(min=1, help="Bootstrap samples.")] = 1000,
    seed: Annotated[int, typer.Option(min=1, help="Decides the samples.")] = 12345,
    as_json: options.Json = False,
) -> None:
    """Say whether one system is better than another, or only luckier, on the same text.

    Prints both systems' scores, the difference with its 95% interval, the p-values of paired bootstrap
    and approximate randomisation, and the sentences that changed most.

    \b
      qknorm compare runs/baseline/hypotheses/test.txt runs/qknorm/hypotheses/test.txt test.en
    """
    from qknorm.scoring import compare as compare_files
    from qknorm.scoring import render_comparison

    comparison = compare_files(baseline, system, references, "raw" if raw else "words", samples, seed)
    print(_json(comparison.to_json()) if as_json else render_comparison(comparison))


def _json(values: object) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False)
