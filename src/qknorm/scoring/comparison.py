"""Whether one system is better than another on the same sentences, or only luckier.

The tests are sacrebleu's: paired bootstrap (Koehn, 2004) and paired approximate randomisation. It gives an
interval for each system but none for their difference, so that one is drawn here, from the same resamples.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result

from qknorm.errors import UserError
from qknorm.scoring import metrics
from qknorm.scoring.lines import Text, check_same_length, read_lines, read_references
from qknorm.scoring.metrics import Kind
from qknorm.scoring.scores import Scores, score_each

TRIALS = 10_000
"""Shufflings of the randomisation test: sacrebleu's default."""

LISTED = 10
"""How many of the most improved, and of the most worsened, sentences are kept."""

Counts = NDArray[np.float64]  # (sentences, counts): whole numbers, summed over sentences before scoring

_seed_lock = threading.Lock()


@dataclass(frozen=True)
class Difference:
    """System minus baseline on one metric: the difference, its 95% interval, and the two tests' p-values."""

    delta: float
    ci_low: float
    ci_high: float
    p_value: float
    p_value_randomization: float
    signature: str
    signature_randomization: str


@dataclass(frozen=True)
class Change:
    """A sentence that the two systems translate differently, and by how much its sentence BLEU changed."""

    line: int
    reference: str
    baseline: str
    system: str
    change: float


@dataclass(frozen=True)
class Comparison:
    """Two systems side by side; `bleu` is on the main BLEU of the kind of text, without TER in the scores."""

    baseline: Scores
    system: Scores
    bleu: Difference
    chrf: Difference
    samples: int
    trials: int
    seed: int
    improved: list[Change]
    worsened: list[Change]

    @property
    def delta(self) -> float:
        """The system's BLEU minus the baseline's."""
        return self.bleu.delta

    @property
    def p_value(self) -> float:
        """Of the paired bootstrap on BLEU."""
        return self.bleu.p_value

    @property
    def ci_low(self) -> float:
        """The lower end of the 95% interval of `delta`."""
        return self.bleu.ci_low

    @property
    def ci_high(self) -> float:
        """The upper end of the 95% interval of `delta`."""
        return self.bleu.ci_high

    def to_json(self) -> dict[str, Any]:
        """Everything, in JSON's types: BLEU's difference at the top, chrF's under `chrf`."""
        return {
            "baseline": self.baseline.to_json(),
            "system": self.system.to_json(),
            **asdict(self.bleu),
            "chrf": asdict(self.chrf),
            "samples": self.samples,
            "trials": self.trials,
            "seed": self.seed,
            "improved": [asdict(change) for change in self.improved],
            "worsened": [asdict(change) for change in self.worsened],
        }


def compare(
    baseline: Text,
    system: Text,
    references: Text,
    kind: Kind = "words",
    samples: int = 1000,
    seed: int = 12345,
) -> Comparison:
    """Compare two systems' translations of the same sentences, each a list of sentences or a file.

    The same `seed` gives the same figures, whatever the state of any other random generator.
    """
    metrics.check_kind(kind)
    _check_settings(samples, seed)
    right = read_references(references)
    old, new = read_lines(baseline, "baseline's output"), read_lines(system, "system's output")
    check_same_length(old, right)
    check_same_length(new, right)
    if len(right.sentences) < 2:
        raise UserError(f"One sentence cannot be resampled; {right.name} must hold at least two.")

    improved, worsened = _most_changed(
        old.sentences, new.sentences, right.sentences, metrics.sentence_bleu(kind)
    )
    bleu, chrf = metrics.main_bleu(kind, right.sentences), metrics.chrf(right.sentences)
    scores = score_each([old.sentences, new.sentences], right.sentences, kind, ter=False)
    return Comparison(
        baseline=scores[0],
        system=scores[1],
        bleu=_difference(bleu, old.sentences, new.sentences, samples, seed),
        chrf=_difference(chrf, old.sentences, new.sentences, samples, seed),
        samples=samples,
        trials=TRIALS,
        seed=seed,
        improved=improved,
        worsened=worsened,
    )


def _check_settings(samples: int, seed: int) -> None:
    if samples < 1:
        raise UserError(f"The number of bootstrap samples must be at least 1, not {samples}; 1000 is usual.")
    if seed < 1:
        raise UserError(f"The seed must be at least 1, not {seed}: sacrebleu takes 0 for no seed at all.")


def _difference(
    metric: Metric, baseline: Sequence[str], system: Sequence[str], samples: int, seed: int
) -> Difference:
    """Both tests and the interval on one metric, which has the references in its cache."""
    old, new = sentence_counts(metric, baseline), sentence_counts(metric, system)
    delta = score_of(metric, new.sum(0)) - score_of(metric, old.sum(0))
    bootstrap, signature = _paired_test("bs", metric, old, new, samples, seed)
    randomization, signature_randomization = _paired_test("ar", metric, old, new, TRIALS, seed)
    low, high = np.quantile(_resampled_differences(metric, old, new, samples, seed), [0.025, 0.975])
    # sacrebleu counts only draws strictly above the observed difference, so that no difference at all, or one
    # in a single sentence, would pass for significant. Shuffling d differing sentences has 2**d outcomes, of
    # which two always match what was observed: no randomisation p-value can be below 2 / 2**d.
    differing = int((old != new).any(axis=1).sum())
    floor = min(1.0, 2.0 ** (1 - differing))
    return Difference(
        delta=delta,
        ci_low=float(low),
        ci_high=float(high),
        p_value=bootstrap if delta else 1.0,
        p_value_randomization=max(randomization, floor) if delta else 1.0,
        signature=signature,
        signature_randomization=signature_randomization,
    )


class _Counted:
    """A metric that is handed counts for sentences, so that sacrebleu's tests need not count them again."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def _extract_corpus_statistics(self, counts: Counts, references: None) -> Counts:
        return counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metric, name)


def _paired_test(
    test: str, metric: Metric, old: Counts, new: Counts, samples: int, seed: int
) -> tuple[float, str]:
    """The system's p-value and the signature of sacrebleu's bootstrap ("bs") or randomisation ("ar") test."""
    systems: Any = [("baseline", old), ("system", new)]
    metrics: Any = {"metric": _Counted(metric)}
    with _sacrebleu_seed(seed):
        signatures, results = PairedTest(systems, metrics, None, test, n_samples=samples)()
    (name,) = signatures
    result = results[name][1]
    assert isinstance(result, Result) and result.p_value is not None
    return float(result.p_value), str(signatures[name])


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacrebleu reads its seed from the environment only; put it there, then put back what was there."""
    with _seed_lock:
        before = os.environ.get("SACREBLEU_SEED")
        os.environ["SACREBLEU_SEED"] = str(seed)
        try:
            yield
        finally:
            if before is None:
                del os.environ["SACREBLEU_SEED"]
            else:
                os.environ["SACREBLEU_SEED"] = before


def sentence_counts(metric: Metric, hypotheses: Sequence[str]) -> Counts:
    """What the metric counts in each sentence, the references being in its cache."""
    return np.array(metric._extract_corpus_statistics(hypotheses, None), dtype=np.float64)


def score_of(metric: Metric, counts: Counts) -> float:
    """The score of a text with these counts."""
    return float(metric._compute_score_from_stats(counts.tolist()).score)


def _resampled_differences(
    metric: Metric, old: Counts, new: Counts, samples: int, seed: int
) -> NDArray[np.float64]:
    """System minus baseline on every resample: the very draws of sacrebleu's bootstrap with this seed."""
    sentences = len(old)
    draws = np.random.default_rng(seed).choice(sentences, size=(samples, sentences), replace=True)
    return np.array(
        [score_of(metric, new[draw].sum(0)) - score_of(metric, old[draw].sum(0)) for draw in draws]
    )


def _most_changed(
    baseline: Sequence[str], system: Sequence[str], references: Sequence[str], metric: BLEU
) -> tuple[list[Change], list[Change]]:
    """The sentences that gained most and those that lost most, the largest change first."""
    changes = [
        Change(
            line,
            reference,
            old,
            new,
            _sentence_score(metric, new, reference) - _sentence_score(metric, old, reference),
        )
        for line, (reference, old, new) in enumerate(zip(references, baseline, system, strict=True), start=1)
        if old != new
    ]
    changes.sort(key=lambda change: (-change.change, change.line))
    improved = [change for change in changes[:LISTED] if change.change > 0]
    changes.sort(key=lambda change: (change.change, change.line))
    worsened = [change for change in changes[:LISTED] if change.change < 0]
    return improved, worsened


def _sentence_score(metric: BLEU, hypothesis: str, reference: str) -> float:
    return float(metric.sentence_score(hypothesis, [reference]).score)
