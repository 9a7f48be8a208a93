"""A model whose products take bfloat16 weights, all written from the float32 ones in one go.

Autocast rounds each weight on its own, forward, and widens each gradient, backward: hundreds of small
kernels a step. The numbers here are the same.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qknorm.model import Transformer
from qknorm.nn import MultiheadAttention

IN_PRODUCTS = {
    "weight",
    "bias",
    "in_proj_weight",
    "in_proj_bias",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
}
"""Parameters of ``nn.Linear`` and ``MultiheadAttention`` that autocast would round."""


class HalfTwin:
    """``twin`` computes what ``model`` does under bfloat16 autocast; other parameters are the model's own."""

    def __init__(self, model: Transformer) -> None:
        self.twin = copy.deepcopy(model)
        self.twin.positions, self.twin.target_subwords = model.positions, model.target_subwords
        self._own: list[Tensor] = []
        self._rounded: list[Tensor] = []
        for theirs, ours in zip(model.modules(), self.twin.modules(), strict=True):
            for name, parameter in theirs._parameters.items():
                if parameter is None:
                    continue
                if isinstance(theirs, nn.Linear | MultiheadAttention) and name in IN_PRODUCTS:
                    rounded = nn.Parameter(parameter.detach().bfloat16())
                    self._own.append(parameter.detach())
                    self._rounded.append(rounded.detach())
                    ours._parameters[name] = rounded
                else:
                    ours._parameters[name] = parameter
        self.parameters = list(self.twin.parameters())
        """In the order of the model's."""
        self._wide = [torch.empty_like(p, dtype=torch.float32) for p in self.parameters if _is_half(p)]

    @torch.no_grad()
    def follow(self) -> None:
        """Take over the model's weights as they are now."""
        torch._foreach_copy_(self._rounded, self._own)

    @torch.no_grad()
    def widened(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of ``parameters`` in float32; their memory is used again the next time."""
        torch._foreach_copy_(self._wide, [g for g in gradients if _is_half(g)])
        wide = iter(self._wide)
        return [next(wide) if _is_half(g) else g for g in gradients]


def _is_half(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16
