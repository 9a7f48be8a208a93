"""How good translations are: the paper's three BLEUs for tokenised text, SacreBLEU for raw, chrF and TER."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from qknorm.scoring import metrics
from qknorm.scoring.counts import Texts, count
from qknorm.scoring.lines import Text, check_same_length, read_lines, read_references
from qknorm.scoring.metrics import MAIN, Kind


@dataclass(frozen=True)
class Scores:
    """The figures of one system, in per cent, each with the sacrebleu signature that says how it came about.

    Words: `bleu_tokenized`, `bleu_13a`, `sacrebleu_detok`, `chrf`, `ter`. Raw: `sacrebleu`, `chrf`, `ter`.
    """

    kind: Kind
    sentences: int
    figures: dict[str, float]
    signatures: dict[str, str]

    def __getitem__(self, name: str) -> float:
        return self.figures[name]

    @property
    def main(self) -> float:
        """The figure that checkpoints are chosen by: tokenised BLEU for words, SacreBLEU for raw text."""
        return self.figures[MAIN[self.kind]]

    def to_json(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        return {
            "kind": self.kind,
            "sentences": self.sentences,
            **self.figures,
            "signatures": dict(self.signatures),
        }


def score(hypotheses: Text, references: Text, kind: Kind = "words", ter: bool = True) -> Scores:
    """Every figure for `hypotheses`, given as a list of sentences or a file, plain or gzip'd.

    Words are what Python's `str.split` gives, as everywhere in sacrebleu. chrF and TER see the text as it is.
    `ter=False` leaves TER out: it takes four fifths of the time, and grows steeply with the length of a line.
    With TER many sentences are shared out over processes, one a core; the figures are the same.
    """
    metrics.check_kind(kind)
    ours, theirs = _read_both(hypotheses, references)
    (scores,) = score_each([ours], theirs, kind, ter)
    return scores


def score_each(
    systems: Sequence[Sequence[str]], references: Sequence[str], kind: Kind, ter: bool
) -> list[Scores]:
    """The scores of several systems on the same sentences; the references are counted only once."""
    counted = count(Texts(systems, references, kind, ter))
    built = {name: metric for name, metric, _ in metrics.measures(kind, ter, references[:1])}
    signatures = {name: str(metric.get_signature()) for name, metric in built.items()}
    scores = []
    for hypotheses, sums in zip(systems, counted, strict=True):
        figures = {
            name: float(metric._compute_score_from_stats(sums[name]).score) for name, metric in built.items()
        }
        scores.append(Scores(kind, len(hypotheses), figures, dict(signatures)))
    return scores


def bleu(hypotheses: Text, references: Text, kind: Kind = "words") -> float:
    """Only `Scores.main`, cheap enough for every validation."""
    metrics.check_kind(kind)
    ours, theirs = _read_both(hypotheses, references)
    return float(_main_bleu(kind, tuple(theirs)).corpus_score(ours, None).score)


@lru_cache(maxsize=1)
def _main_bleu(kind: Kind, references: tuple[str, ...]) -> BLEU:
    """Kept, for every validation of a training has the same references."""
    return metrics.main_bleu(kind, references)


def _read_both(hypotheses: Text, references: Text) -> tuple[list[str], list[str]]:
    right = read_references(references)
    mine = read_lines(hypotheses, "hypotheses")
    check_same_length(mine, right)
    return mine.sentences, right.sentences
