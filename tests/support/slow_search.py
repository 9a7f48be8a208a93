"""Slow searches to compare with: one sentence, no caches, no batches, the whole prefix run at each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qknorm.ids import BOS, EOS, PAD
from qknorm.model import ModelSettings, Transformer
from qknorm.translation import SearchSettings

Found = tuple[tuple[int, ...], float, float]  # ids, score, log-probability


def small_model(
    seed: int, vocab_size: int = 12, dtype: torch.dtype = torch.float64, **settings: object
) -> Transformer:
    """A random model with opinions: peaked enough that hypotheses differ in score."""
    torch.manual_seed(seed)
    shape: dict[str, object] = {
        "d_model": 16,
        "d_ff": 32,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 2,
    }
    model = Transformer(vocab_size, ModelSettings(**{**shape, **settings}))  # type: ignore[arg-type]
    with torch.no_grad():
        model.embedding.bias.normal_()
        model.embedding.bias[EOS] += 2
        for layer in model.decoder:
            layer.ff.outer.weight.mul_(6)
            layer.cross_attn.out_proj.weight.mul_(6)
    return model.to(dtype).eval()


@torch.no_grad()
def next_log_probs(
    models: Sequence[Transformer], source: Sequence[int], prefix: Sequence[int]
) -> list[float]:
    """log p of each subword after the prefix: the logarithm of the models' mean probability."""
    inputs = torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *prefix]])
    mean = torch.stack([model(*inputs)[0, -1].softmax(-1) for model in models]).mean(0)
    return mean.log().tolist()


def greedy(model: Transformer, source: Sequence[int], limit: int) -> tuple[list[int], bool]:
    """The likeliest subword at each step; and whether EOS came within the limit."""
    ids: list[int] = []
    for _ in range(limit):
        log_probs = next_log_probs([model], source, ids)
        barred = {PAD, BOS} if ids else {PAD, BOS, EOS}
        best = max((i for i in range(len(log_probs)) if i not in barred), key=lambda i: log_probs[i])
        if best == EOS:
            return ids, True
        ids.append(best)
    return ids, False


def beam(models: Sequence[Transformer], source: Sequence[int], settings: SearchSettings) -> list[Found]:
    """All finished hypotheses that a beam search meets, best first, without stopping early for nbest."""
    limit = len(source) + settings.max_extra
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[Found] = []
    for n in range(1, limit + 1):
        ends, going_on = [], []
        for ids, total in live:
            for i, log_prob in enumerate(next_log_probs(models, source, ids)):
                if i == EOS and n > 1:
                    ends.append((ids, total + log_prob))
                elif i not in (PAD, BOS, EOS):
                    going_on.append(((*ids, i), total + log_prob))
        going_on.sort(key=lambda c: -c[1])
        ranked = sorted([*((c, True) for c in ends), *((c, False) for c in going_on)], key=lambda c: -c[0][1])
        factor = ((5 + n) / 6) ** settings.length_penalty
        finished += [(ids, p / factor, p) for (ids, p), ended in ranked[: settings.beam] if ended]
        finished = sorted(finished, key=lambda f: -f[1])[: settings.beam]
        live = going_on[: settings.beam]
        if len(finished) == settings.beam and live[0][1] / factor <= finished[-1][1]:
            break
    return finished or [(ids, p / factor, p) for ids, p in live]


def exhaustive(
    models: Sequence[Transformer], source: Sequence[int], settings: SearchSettings, vocab_size: int
) -> list[Found]:
    """Every finished translation within the limit, best first."""
    subwords = [i for i in range(vocab_size) if i not in (PAD, BOS, EOS)]
    limit = len(source) + settings.max_extra
    found: list[Found] = []

    def follow(ids: tuple[int, ...], total: float) -> None:
        log_probs, n = next_log_probs(models, source, ids), len(ids) + 1
        if ids:
            p = total + log_probs[EOS]
            found.append((ids, p / ((5 + n) / 6) ** settings.length_penalty, p))
        if n < limit:
            for i in subwords:
                follow((*ids, i), total + log_probs[i])

    follow((), 0.0)
    return sorted(found, key=lambda f: -f[1])
