"""How much a model needs each head: the loss with that head's output set to zero (Michel et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from qknorm.analysis.weights import KINDS, Kind, modules
from qknorm.model import Transformer
from qknorm.nn import MultiheadAttention
from qknorm.translation import force_score


@contextmanager
def masked_head(module: MultiheadAttention, head: int) -> Iterator[None]:
    """Inside, one head of a module, from 0, contributes nothing."""

    def silence(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        x = arguments[0].clone()  # (…, E), the heads side by side
        x[..., head * module.head_dim : (head + 1) * module.head_dim] = 0
        return (x,)

    hook = module.out_proj.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()


def loss_per_subword(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> float:
    """Mean negative log-probability of a target subword, EOS counted, in nats."""
    scores = force_score(model, sources, targets)
    return -math.fsum(each.log_prob for each in scores) / sum(len(each.token_log_probs) for each in scores)


def head_importance(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    progress: Callable[[int], None] | None = None,
) -> tuple[float, dict[Kind, NDArray[np.float64]]]:
    """The loss as the model is, and for each kind (L, H) how much it rises without each head."""
    whole = loss_per_subword(model, sources, targets)
    found: dict[Kind, NDArray[np.float64]] = {}
    done = 0
    for kind in KINDS:
        layers = modules(model)[kind]
        found[kind] = np.zeros((len(layers), layers[0].num_heads))
        for layer, module in enumerate(layers):
            for head in range(module.num_heads):
                with masked_head(module, head):
                    found[kind][layer, head] = loss_per_subword(model, sources, targets) - whole
                done += 1
                if progress is not None:
                    progress(done)
    return whole, found
