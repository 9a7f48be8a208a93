"""What a training step is given in ``train_gpu.py``, and the arithmetic it cannot do without.

Axes: B sentences, S source and T target positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from train_candidates import Size

from qknorm.data.batches import Batch, Batches
from qknorm.data.sentences import EncodedPairs, Sentences, offsets_of
from qknorm.ids import PAD

SPECIAL = 4
MEANS, SPREAD, SWING, LONGEST = (24.1, 26.1), 0.57, 0.2, 200
Lengths = NDArray[np.int64]


def read_lengths(file: Path) -> Lengths:
    """(2, N) subwords of source and target sentences, from a file of two columns."""
    found: NDArray[Any] = np.loadtxt(file, ndmin=2)
    if found.shape[1] != 2 or not (found >= 1).all():
        raise SystemExit(f"{file}: expected two columns of lengths in subwords, all at least 1")
    return found.T.astype(np.int64)


def made_up_lengths(pairs: int) -> Lengths:
    """(2, N) log-normal lengths with about en-vi's means, target beside source within some 20%."""
    rng = np.random.default_rng(1)
    common = rng.lognormal(-(SPREAD**2) / 2, SPREAD, pairs)
    own = (np.ones(pairs), rng.lognormal(-(SWING**2) / 2, SWING, pairs))
    sides = [mean * common * swing for mean, swing in zip(MEANS, own, strict=True)]
    return np.clip(np.rint(sides), 1, LONGEST).astype(np.int64)


def corpus_of(lengths: Lengths, vocabulary: int) -> EncodedPairs:
    """Sentences of these lengths, their subwords drawn at random."""
    rng = np.random.default_rng(2)
    source, target = (
        Sentences(rng.integers(SPECIAL, vocabulary, side.sum(), dtype=np.int32), offsets_of(side))
        for side in lengths
    )
    return EncodedPairs(source, target)


def square_batch(sentences: int, length: int, vocabulary: int) -> Batch:
    """One full batch: source and target (B, S) and (B, T) without padding, EOS and BOS included."""
    lengths = np.full((2, sentences), length - 1)
    return Batches(corpus_of(lengths, vocabulary), sentences * length, seed=1).largest()


def step_flops(size: Size, vocabulary: int, batch: Batch) -> float:
    """Operations of forward and backward, of real subwords alone.

    Products with weights: 6 × weights × subwords (2 forward, 4 backward). A source subword meets
    ``layers × (4 d² + 2 d·ff)`` weights of the encoder and ``layers × 2 d²`` of the decoder (keys and values
    of cross-attention); a target subword ``layers × (4 d² + 2 d² + 2 d·ff)`` and the output table's
    ``vocabulary × d``. Attention: 12 × d × layers for each query and key that meet (products with keys and
    values, 2 d each; forward once, backward twice): s² of an encoder's sentence, s·t across,
    t (t + 1) / 2 where only the past is seen. Norms, dropout, softmax and Adam are left out.
    """
    d, layers = size.width, size.layers
    forward = 2 * d * size.inner
    by_source = layers * (4 * d * d + forward + 2 * d * d)
    by_target = layers * (6 * d * d + forward) + vocabulary * d
    s, t = ((ids != PAD).sum(axis=1).astype(float) for ids in (batch.source, batch.target_out))  # (B,)
    meetings = (s * s + s * t + t * (t + 1) / 2).sum()
    return float(6 * (by_source * s.sum() + by_target * t.sum()) + 12 * d * layers * meetings)


def mean_flops(size: Size, vocabulary: int, batches: Iterable[Batch]) -> float:
    return float(np.mean([step_flops(size, vocabulary, batch) for batch in batches]))
