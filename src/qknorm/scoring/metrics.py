"""Which sacrebleu metrics the project reports, each built in one place with its settings.

A metric is built for one set of references, which sacrebleu counts once for any number of systems.
`force=True` only keeps sacrebleu from warning that the text looks tokenised: here that is known.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from qknorm.errors import UserError
from qknorm.scoring.detokenizer import detokenize

Kind = Literal["words", "raw"]
"""What the text is: whitespace-separated words as a tokeniser left them, or ordinary text."""

MAIN = {"words": "bleu_tokenized", "raw": "sacrebleu"}
"""The figure that checkpoints are chosen by and systems compared on."""


def check_kind(kind: str) -> None:
    """Refuse a kind of text that is not one of the two."""
    if kind not in MAIN:
        raise UserError(
            f'"{kind}" is not a kind of text; choose "words" (tokenised) or "raw" (ordinary text).'
        )


def tokenized_bleu(references: Sequence[str]) -> BLEU:
    """multi-bleu.perl's BLEU: the words as they are, and 0 as soon as one n-gram precision is 0."""
    return BLEU(tokenize="none", smooth_method="none", force=True, references=[references])


def tokenized_13a_bleu(references: Sequence[str]) -> BLEU:
    """multi-bleu-detok.perl's BLEU: mteval-v13a's tokeniser, unsmoothed."""
    return BLEU(tokenize="13a", smooth_method="none", force=True, references=[references])


def sacre_bleu(references: Sequence[str]) -> BLEU:
    """SacreBLEU as everybody reports it: 13a, exponential smoothing."""
    return BLEU(tokenize="13a", smooth_method="exp", force=True, references=[references])


def main_bleu(kind: Kind, references: Sequence[str]) -> BLEU:
    """The BLEU behind `MAIN[kind]`."""
    return tokenized_bleu(references) if kind == "words" else sacre_bleu(references)


def sentence_bleu(kind: Kind) -> BLEU:
    """BLEU for one sentence: smoothed, and only up to the n-gram order that the sentence has."""
    return BLEU(tokenize="none" if kind == "words" else "13a", effective_order=True, force=True)


def chrf(references: Sequence[str]) -> CHRF:
    """chrF2, sacrebleu's default."""
    return CHRF(references=[references])


def ter(references: Sequence[str]) -> TER:
    """Translation edit rate, sacrebleu's default (tercom); lower is better."""
    return TER(references=[references])


def measures(
    kind: Kind, ter_too: bool, references: Sequence[str]
) -> Iterator[tuple[str, Metric, Callable[[str], str]]]:
    """Name, metric and what is done to a line before it is scored, in the order of printing."""
    if kind == "words":
        yield "bleu_tokenized", tokenized_bleu(references), str
        yield "bleu_13a", tokenized_13a_bleu(references), str
        yield "sacrebleu_detok", sacre_bleu([detokenize(line) for line in references]), detokenize
    else:
        yield "sacrebleu", sacre_bleu(references), str
    yield "chrf", chrf(references), str
    if ter_too:
        yield "ter", ter(references), str
