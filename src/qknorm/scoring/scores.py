"""How good translations are: the paper's three BLEUs for tokenised text, SacreBLEU for raw, chrF and TER."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.base import Metric

from qknorm.scoring import metrics
from qknorm.scoring.detokenizer import detokenize
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
    `ter=False` leaves TER out: it takes some five seconds for a thousand sentences, ten times all the rest.
    """
    metrics.check_kind(kind)
    ours, theirs = _read_both(hypotheses, references)
    figures, signatures = {}, {}
    for name, metric, mine, right in _measures(kind, ter, ours, theirs):
        figures[name] = float(metric.corpus_score(mine, [right]).score)
        signatures[name] = str(metric.get_signature())
    return Scores(kind, len(ours), figures, signatures)


def bleu(hypotheses: Text, references: Text, kind: Kind = "words") -> float:
    """Only `Scores.main`, cheap enough for every validation."""
    metrics.check_kind(kind)
    ours, theirs = _read_both(hypotheses, references)
    return float(metrics.main_bleu(kind, theirs).corpus_score(ours, None).score)


def _read_both(hypotheses: Text, references: Text) -> tuple[list[str], list[str]]:
    right = read_references(references)
    mine = read_lines(hypotheses, "hypotheses")
    check_same_length(mine, right)
    return mine.sentences, right.sentences


def _measures(
    kind: Kind, ter: bool, hypotheses: Sequence[str], references: Sequence[str]
) -> Iterator[tuple[str, Metric, Sequence[str], Sequence[str]]]:
    """Name, metric and the text it is shown, in the order of printing."""
    if kind == "words":
        yield "bleu_tokenized", metrics.tokenized_bleu(), hypotheses, references
        yield "bleu_13a", metrics.tokenized_13a_bleu(), hypotheses, references
        joined = [detokenize(line) for line in hypotheses], [detokenize(line) for line in references]
        yield "sacrebleu_detok", metrics.sacre_bleu(), *joined
    else:
        yield "sacrebleu", metrics.sacre_bleu(), hypotheses, references
    yield "chrf", metrics.chrf(), hypotheses, references
    if ter:
        yield "ter", metrics.ter(), hypotheses, references
