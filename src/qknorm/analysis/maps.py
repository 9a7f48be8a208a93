"""Attention maps of one sentence and its translation: tokens, and the weights of every layer and head.

    translator = Translator.load("runs/gl-en")
    seen = sentence_attention(translator, "unha frase")
    seen.cross.rows, seen.cross.columns, seen.cross.weights.shape
    seen.words().cross.weights.mean(axis=(0, 1))

Axes: L layers, H heads, T tokens that look, S tokens looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from qknorm.analysis.weights import KINDS, Kind, batch_weights
from qknorm.data import Subwords
from qknorm.errors import UserError
from qknorm.ids import BOS, EOS
from qknorm.model import Transformer
from qknorm.translation.batches import pad, pairs_by_length
from qknorm.translation.ensemble import Ensemble, check_pairs
from qknorm.translation.translator import Translator

START, END = "<s>", "</s>"
"""How the beginning and the end of a sentence are shown."""
LONGEST = 512
"""Subwords of a sentence that can still be looked at; ``pair_attention`` has no such bound."""


class Words(NamedTuple):
    """The words that tokens are part of; the ends of a sentence are words of their own."""

    texts: list[str]
    numbers: list[int]
    """For each token the number of its word, from 0."""


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one kind of attention, with the tokens on both axes."""

    kind: Kind
    rows: list[str]
    """The T tokens that look."""
    columns: list[str]
    """The S tokens looked at."""
    weights: NDArray[np.float32]
    """(L, H, T, S); every row sums to 1."""
    row_words: Words
    column_words: Words

    def words(self) -> AttentionMap:
        """The same between words: weights on a word's subwords summed, those of its own subwords averaged.

        (Clark et al. 2019.) Rows still sum to 1. A word of the decoder also looks at its own beginning.
        """
        columns = _groups(self.column_words)  # (words, S)
        rows = _groups(self.row_words)  # (words, T)
        rows = rows / rows.sum(axis=1, keepdims=True)
        return AttentionMap(
            self.kind,
            self.row_words.texts,
            self.column_words.texts,
            (rows @ self.weights @ columns.T).astype(np.float32),
            Words(self.row_words.texts, list(range(len(rows)))),
            Words(self.column_words.texts, list(range(len(columns)))),
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, in JSON's types; weights to 4 decimals."""
        return {
            "kind": self.kind,
            "rows": self.rows,
            "columns": self.columns,
            "weights": np.round(self.weights.astype(np.float64), 4).tolist(),
        }


@dataclass(frozen=True)
class SentenceAttention:
    """A sentence, its translation, and the maps of all three kinds.

    Source tokens are the source's and then its end. Rows of ``decoder`` and ``cross`` are the tokens being
    predicted, the translation's and then its end; columns of ``decoder`` are the tokens known by then, the
    start and then the translation's: row i sees columns 0 to i.
    """

    source: str
    translation: str
    encoder: AttentionMap
    decoder: AttentionMap
    cross: AttentionMap

    def __getitem__(self, kind: Kind) -> AttentionMap:
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]

    def words(self) -> SentenceAttention:
        """The same between words instead of subwords."""
        return SentenceAttention(
            self.source, self.translation, self.encoder.words(), self.decoder.words(), self.cross.words()
        )

    def to_json(self, kinds: Sequence[Kind] = KINDS) -> dict[str, Any]:
        """Everything, in JSON's types."""
        maps: dict[str, Any] = {kind: self[kind].to_json() for kind in kinds}
        return {"source": self.source, "translation": self.translation, **maps}


def sentence_attention(
    translator: Translator, source: str, target: str | None = None, beam: int | None = None
) -> SentenceAttention:
    """The maps of a sentence with its translation: the translator's own, or a given one.

    Args:
        translator: of one model.
        source: the sentence.
        target: its translation; None for what the translator says.
        beam: of the search for it; the run's own where it is not given.
    """
    if len(translator.models) != 1:
        raise UserError("Attention maps are of one model; an ensemble has none of its own.")
    subwords = translator.subwords
    _check_line("sentence", source)
    (ids,) = subwords.encode([source.strip()], "source")
    if not ids:
        raise UserError("The sentence is blank; give one with words in it.")
    _check_length("sentence", ids)
    if target is not None:
        _check_line("translation", target)
        (wanted,) = subwords.encode([target.strip()], "target")
        _check_length("translation", wanted)
    else:
        (found,) = translator.stream([source.strip()], beam=beam)
        wanted = found[0].ids
    return pair_attention(translator.models[0], subwords, [ids], [wanted])[0]


def _check_line(noun: str, text: str) -> None:
    if "\n" in text.strip():
        raise UserError(f"The {noun} has a line break in it; give one sentence at a time.")
    if any("\ud800" <= c <= "\udfff" for c in text):  # what Python makes of bytes that are not UTF-8
        raise UserError(f"The {noun} is not valid UTF-8.")


def _check_length(noun: str, ids: Sequence[int]) -> None:
    if len(ids) > LONGEST:
        raise UserError(
            f"The {noun} has {len(ids):,} subwords, more than can be looked at ({LONGEST}); give part of it."
        )


def pair_attention(
    model: Transformer,
    subwords: Subwords,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 4096,
) -> list[SentenceAttention]:
    """The maps of many sentences at once, given as subword ids without EOS; no source may be empty.

    Args:
        model: the model.
        subwords: its subwords.
        sources: ids of each source.
        targets: ids of each translation.
        batch_tokens: bound on memory: sentences × longest (source + target) of a batch.
    """
    ensemble = Ensemble(model)
    check_pairs(sources, targets, ensemble.vocab_size)
    if not all(map(len, sources)):
        raise ValueError("an empty source has no attention maps")
    found: list[SentenceAttention | None] = [None] * len(sources)
    lengths = [(len(s) + 1, len(t) + 1) for s, t in zip(sources, targets, strict=True)]
    with ensemble.evaluating():
        for batch in pairs_by_length(lengths, batch_tokens):
            source = pad([[*sources[i], EOS] for i in batch], ensemble.device)
            target = pad([[BOS, *targets[i]] for i in batch], ensemble.device)
            weights = {
                kind: each.float().cpu() for kind, each in batch_weights(model, source, target).items()
            }
            for place, i in enumerate(batch):
                own = {kind: each[place] for kind, each in weights.items()}
                found[i] = _maps(subwords, sources[i], targets[i], own)
    return [each for each in found if each is not None]


def _maps(
    subwords: Subwords, source: Sequence[int], target: Sequence[int], weights: dict[Kind, Tensor]
) -> SentenceAttention:
    """Cut the padding off one sentence's (L, H, T, S) weights and name the axes."""
    read, said = _axis(subwords, source), _axis(subwords, target)
    known = [START, *said[0]], Words([START, *said[1].texts], [0, *(n + 1 for n in said[1].numbers)])

    def cut(kind: Kind, rows: tuple[list[str], Words], columns: tuple[list[str], Words]) -> AttentionMap:
        own = weights[kind][:, :, : len(rows[0]), : len(columns[0])].numpy().copy()
        return AttentionMap(kind, rows[0], columns[0], own, rows[1], columns[1])

    read, said = _with(END, *read), _with(END, *said)
    source_text, target_text = subwords.decode([source, target])
    return SentenceAttention(
        source_text,
        target_text,
        cut("encoder", read, read),
        cut("decoder", said, known),
        cut("cross", said, read),
    )


def _axis(subwords: Subwords, ids: Sequence[int]) -> tuple[list[str], Words]:
    """The pieces of a sentence, and its words as text."""
    numbers = subwords.word_numbers(ids)
    groups = [
        [i for _, i in group] for _, group in groupby(zip(numbers, ids, strict=True), lambda pair: pair[0])
    ]
    texts = [text.strip() or "▁" for text in subwords.decode(groups)]
    return subwords.pieces(ids), Words(texts, np.unique(numbers, return_inverse=True)[1].tolist())


def _with(end: str, pieces: list[str], words: Words) -> tuple[list[str], Words]:
    """An axis with one more token at its end."""
    return [*pieces, end], Words([*words.texts, end], [*words.numbers, len(words.texts)])


def _groups(words: Words) -> NDArray[np.float32]:
    """(words, tokens), 1 where a token is part of a word."""
    return np.eye(len(words.texts), dtype=np.float32)[words.numbers].T
