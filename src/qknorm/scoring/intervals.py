"""How sure a score is: its 95% interval under resampling of the sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qknorm.scoring import metrics
from qknorm.scoring.comparison import score_of, sentence_counts
from qknorm.scoring.metrics import MAIN, Kind


def intervals(
    hypotheses: Sequence[str], references: Sequence[str], kind: Kind, samples: int = 1000, seed: int = 12345
) -> dict[str, tuple[float, float]]:
    """The 95% bootstrap intervals of the main BLEU and of chrF, by the names of ``Scores.figures``."""
    metrics.check_kind(kind)
    draws = np.random.default_rng(seed).choice(len(references), size=(samples, len(references)), replace=True)
    found = {}
    for name, metric in (
        (MAIN[kind], metrics.main_bleu(kind, references)),
        ("chrf", metrics.chrf(references)),
    ):
        counts = sentence_counts(metric, hypotheses)
        scores = [score_of(metric, counts[draw].sum(0)) for draw in draws]
        low, high = np.quantile(scores, [0.025, 0.975])
        found[name] = (float(low), float(high))
    return found
