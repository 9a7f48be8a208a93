"""The cross-attention of a model on given translations.

Axes: L decoder layers, H heads, T target positions, S source positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qknorm.ids import BOS, EOS
from qknorm.model import Transformer
from qknorm.translation.batches import pad, pairs_by_length
from qknorm.translation.ensemble import Ensemble, check_pairs


def cross_attention(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 16384,
) -> list[Tensor]:
    """Where every layer and head looks in the source as it predicts each target subword: (L, H, T, S).

    Both sides are given without EOS. T is one more than the target's subwords, the last row being that
    of the prediction of its EOS; S is one more than the source's, the last column being its EOS. Of an
    empty source nothing is asked: T and S are 0.

    Args:
        model: the model.
        sources: subword ids of each source.
        targets: subword ids of each translation.
        batch_tokens: bound on memory: sentences × longest (source + target) of a batch.
    """
    ensemble = Ensemble(model)
    check_pairs(sources, targets, ensemble.vocab_size)
    heads = (model.settings.decoder_layers, model.settings.heads)
    found = [torch.zeros(*heads, 0, 0) for _ in sources]
    asked = [i for i, source in enumerate(sources) if source]
    lengths = [(len(sources[i]) + 1, len(targets[i]) + 1) for i in asked]
    with ensemble.evaluating():
        for batch in pairs_by_length(lengths, batch_tokens):
            members = [asked[j] for j in batch]
            weights = _batch_attention(
                model,
                pad([[*sources[i], EOS] for i in members], ensemble.device),
                pad([[BOS, *targets[i]] for i in members], ensemble.device),
            )
            for i, sentence in zip(members, weights, strict=True):
                found[i] = sentence[:, :, : len(targets[i]) + 1, : len(sources[i]) + 1].clone()
    return found


def _batch_attention(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """(B, L, H, T, S) on the CPU, padding included."""
    state = model.start(source)
    steps = []
    for position in range(target.size(1)):
        _, weights = model.step(target[:, position : position + 1], state, need_weights=True)
        steps.append(torch.stack(weights, dim=1).cpu())  # (B, L, H, 1, S)
    return torch.cat(steps, dim=3)
