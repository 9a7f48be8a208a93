"""One model or several as one distribution over the next subword.

Axes: B sentences, K hypotheses of a sentence, V subwords, S source positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from qknorm.ids import BOS, PAD
from qknorm.model import DecoderState, Transformer
from qknorm.nn.functional import widen


class Ensemble:
    """Models of one vocabulary, decoded together: the mean of their probabilities.

    The mean of probabilities, and not of log-probabilities, is itself a distribution, so the scores of
    an ensemble are log-probabilities like those of one model.
    """

    def __init__(self, models: Transformer | Sequence[Transformer]) -> None:
        self.models = [models] if isinstance(models, Transformer) else list(models)
        if not self.models:
            raise ValueError("at least one model is needed")
        sizes = [model.embedding.num_embeddings for model in self.models]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"the models of an ensemble must share one vocabulary; theirs have {sizes} subwords"
            )
        self.vocab_size = sizes[0]
        self.device = self.models[0].embedding.weight.device

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """No dropout and no gradients inside; afterwards every module is in the mode it was in."""
        modes = [(module, module.training) for model in self.models for module in model.modules()]
        for model in self.models:
            model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, training in modes:
                module.training = training

    def producible(self) -> Tensor:
        """(V,) True for what a translation may have: not PAD or BOS, nor subwords of the source side only."""
        allowed = torch.zeros(self.vocab_size, dtype=torch.bool, device=self.device)
        for model in self.models:
            allowed |= True if model.target_subwords is None else model.target_subwords.to(self.device)
        allowed[[PAD, BOS]] = False
        return allowed

    def start(self, source: Tensor) -> list[DecoderState]:
        """Each model's state for decoding (B, S) sources."""
        return [model.start(source) for model in self.models]

    def step(self, ids: Tensor, states: list[DecoderState]) -> tuple[Tensor, Tensor]:
        """Scores (B, K, V) of the next subwords and their normaliser (B, K): log p = scores − normaliser.

        Kept apart because a search needs few of the V log-probabilities. At least float32.
        """
        logits = [widen(model.step(ids, state)[0]) for model, state in zip(self.models, states, strict=True)]
        if len(logits) == 1:
            return logits[0], logits[0].logsumexp(dim=-1)
        total = logits[0].log_softmax(dim=-1)
        for other in logits[1:]:
            total = torch.logaddexp(total, other.log_softmax(dim=-1))
        return total, total.new_full(total.shape[:-1], math.log(len(logits)))


def check_ids(name: str, sentences: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Refuse ids that no subword has, and padding inside a sentence."""
    for number, ids in enumerate(sentences):
        if ids and not (min(ids) > PAD and max(ids) < vocab_size):
            raise ValueError(
                f"{name} {number} has ids from {min(ids)} to {max(ids)}; "
                f"they must be more than {PAD} (padding) and less than {vocab_size} (the vocabulary)"
            )


def check_pairs(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Refuse a different number of sources and targets, and what ``check_ids`` refuses of either."""
    if len(sources) != len(targets):
        raise ValueError(f"there must be one target per source, not {len(targets)} for {len(sources)}")
    check_ids("source", sources, vocab_size)
    check_ids("target", targets, vocab_size)
