"""Scores of given translations.

Axes: B sentences of a batch, T target positions, V subwords, R positions whose logits are computed at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qknorm.ids import BOS, EOS
from qknorm.model import Transformer
from qknorm.nn.functional import widen
from qknorm.translation.batches import pad, pairs_by_length
from qknorm.translation.ensemble import Ensemble, check_pairs

ROWS = 1024
"""Positions whose logits are computed at a time."""


@dataclass(frozen=True)
class ForcedScore:
    """How probable a given translation is."""

    log_prob: float
    """Of the whole translation, its EOS included."""
    token_log_probs: list[float]
    """Of each of its subwords after those before it; the last is EOS's."""


def force_score(
    models: Transformer | Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 8192,
) -> list[ForcedScore]:
    """The log-probability of each target given its source, both without EOS.

    It is the ``log_prob`` a search gives the same translation. So an empty translation of an empty
    source, which is no work of the model, has log-probability 0 and no tokens.

    Args:
        models: one, or several of one vocabulary: the mean of their probabilities counts.
        sources: subword ids of each source.
        targets: subword ids of each translation.
        batch_tokens: bound on memory: sentences × longest (source + target) of a batch.
    """
    ensemble = Ensemble(models)
    check_pairs(sources, targets, ensemble.vocab_size)
    scores = [ForcedScore(0.0, []) for _ in sources]
    asked = [i for i, pair in enumerate(zip(sources, targets, strict=True)) if any(pair)]
    lengths = [(len(targets[i]) + 1, len(sources[i]) + 1) for i in asked]
    batches: list[tuple[list[int], Tensor]] = []
    with ensemble.evaluating():
        for batch in pairs_by_length(lengths, batch_tokens):
            members = [asked[j] for j in batch]
            source = pad([[*sources[i], EOS] for i in members], ensemble.device)
            target = pad([[BOS, *targets[i], EOS] for i in members], ensemble.device)
            batches.append((members, _batch_log_probs(ensemble, source, target)))
    for members, log_probs in batches:  # read when all are under way: reading waits for a GPU
        for i, row in zip(members, log_probs.tolist(), strict=True):
            tokens = row[: len(targets[i]) + 1]
            scores[i] = ForcedScore(math.fsum(tokens), tokens)
    return scores


def _batch_log_probs(ensemble: Ensemble, source: Tensor, target: Tensor) -> Tensor:
    """(B, T − 1) log-probabilities of the target's subwords after the first; at padding they mean nothing."""
    given, asked = target[:, :-1], target[:, 1:]
    each = []
    for model in ensemble.models:
        memory, padding = model.encode(source)
        hidden = model.decode(given, memory, padding).flatten(0, 1)
        parts = zip(torch.split(hidden, ROWS), torch.split(asked.flatten(), ROWS), strict=True)
        each.append(torch.cat([_log_probs_of(ids, model.logits(h)) for h, ids in parts]))
    mean = torch.logsumexp(torch.stack(each), dim=0) - math.log(len(each))
    return mean.view(asked.shape)


def _log_probs_of(ids: Tensor, logits: Tensor) -> Tensor:
    """(R,) log-probabilities of the ids under logits (R, V)."""
    logits = widen(logits)
    return logits.gather(1, ids[:, None]).squeeze(1) - logits.logsumexp(dim=1)
