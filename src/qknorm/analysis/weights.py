"""The attention weights of every layer and head, as the model computes them.

Axes: B sentences, L layers, H heads, T positions that look, S positions looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qknorm.model import Transformer
from qknorm.nn import MultiheadAttention

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
"""Self-attention of the encoder, of the decoder, and the decoder's attention to the source."""


def modules(model: Transformer) -> dict[Kind, list[MultiheadAttention]]:
    """The attention modules of each kind, from the first layer to the last."""
    return {
        "encoder": [layer.self_attn for layer in model.encoder],  # type: ignore[misc]
        "decoder": [layer.self_attn for layer in model.decoder],  # type: ignore[misc]
        "cross": [layer.cross_attn for layer in model.decoder],  # type: ignore[misc]
    }


def batch_weights(model: Transformer, source: Tensor, target: Tensor) -> dict[Kind, Tensor]:
    """The weights of each kind, (B, L, H, T, S), padding included, on the model's device.

    Args:
        model: in evaluation mode.
        source: (B, S) ids that end with EOS, then padding.
        target: (B, T) ids that begin with BOS.
    """
    of_kind = modules(model)
    with torch.no_grad(), _kept_weights([each for found in of_kind.values() for each in found]) as kept:
        memory, padding = model.encode(source)
        model.decode(target, memory, padding)
    return {kind: torch.stack([kept[each] for each in found], dim=1) for kind, found in of_kind.items()}


@contextmanager
def _kept_weights(watched: list[MultiheadAttention]) -> Iterator[dict[nn.Module, Tensor]]:
    """Inside, these modules are asked for their weights at every call; those of the last call are kept."""
    kept: dict[nn.Module, Tensor] = {}

    def ask(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        return arguments, {**named, "need_weights": True, "average_attn_weights": False}

    def keep(module: nn.Module, _: Any, answer: tuple[Tensor, Tensor]) -> None:
        kept[module] = answer[1]

    hooks = [each.register_forward_pre_hook(ask, with_kwargs=True) for each in watched]
    hooks += [each.register_forward_hook(keep) for each in watched]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()
