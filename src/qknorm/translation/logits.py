"""How large the logits of attention get on given translations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from qknorm.ids import BOS, EOS
from qknorm.model import Transformer
from qknorm.nn import Packing, observe
from qknorm.translation.batches import pairs_by_length, send
from qknorm.translation.ensemble import Ensemble, check_pairs


def largest_logits(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 4096,
) -> dict[str, float]:
    """The largest |logit| of each attention module, by its name, as it reads the sources and targets.

    Args:
        model: the model.
        sources: subword ids of each source, without EOS.
        targets: subword ids of each translation.
        batch_tokens: bound on memory: sentences × longest (source + target) of a batch.
    """
    ensemble = Ensemble(model)
    check_pairs(sources, targets, ensemble.vocab_size)
    lengths = [(len(s) + 1, len(t) + 1) for s, t in zip(sources, targets, strict=True)]
    with ensemble.evaluating(), observe(model) as seen:
        for batch in pairs_by_length(lengths, batch_tokens):
            # Packed and not padded: what stands at padding has logits too, and they are nobody's.
            source, source_packing = _packed([[*sources[i], EOS] for i in batch], ensemble.device)
            target, target_packing = _packed([[BOS, *targets[i]] for i in batch], ensemble.device)
            memory, _ = model.encode(source, source_packing)
            model.decode(target, memory, None, target_packing, source_packing)
    return {name: stats.max_logit for name, stats in seen.items()}


def _packed(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Packing]:
    ids = torch.tensor(list(chain.from_iterable(rows)))
    return send(ids, device), Packing.of([len(row) for row in rows], device=device)
