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
BIASES = {"bias"}


class HalfTwin:
    """``twin`` computes what ``model`` does under bfloat16 autocast; other parameters are the model's own.

    Kernels that add the biases of ``nn.Linear`` want them as they are: ``with_biases`` False.
    """

    def __init__(self, model: Transformer, with_biases: bool = True) -> None:
        shared = model.positions, model.rotary, model.target_subwords
        self.twin = copy.deepcopy(model, {id(x): x for x in shared})
        names = IN_PRODUCTS if with_biases else IN_PRODUCTS - BIASES
        self.copies: list[Tensor | None] = []
        """Of each parameter of the model its bfloat16 copy, if it has one."""
        for theirs, ours in zip(model.modules(), self.twin.modules(), strict=True):
            for name, parameter in theirs._parameters.items():
                if parameter is None:
                    continue
                rounds = isinstance(theirs, nn.Linear | MultiheadAttention) and name in names
                if rounds:
                    ours._parameters[name] = nn.Parameter(parameter.detach().bfloat16())
                else:
                    ours._parameters[name] = parameter
                self.copies.append(ours._parameters[name] if rounds else None)
        self.parameters = list(self.twin.parameters())
        """In the order of the model's."""
        self._own: list[Tensor] = list(model.parameters())
        self._wide: list[Tensor] = []  # room for gradients, once they are asked for

    @torch.no_grad()
    def follow(self) -> None:
        """Take over the model's weights as they are now."""
        copies = [copy for copy in self.copies if copy is not None]
        own = [p for p, copy in zip(self._own, self.copies, strict=True) if copy is not None]
        torch._foreach_copy_(copies, own)

    @torch.no_grad()
    def widened(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of ``parameters`` in float32; their memory is used again the next time."""
        if not self._wide:
            self._wide = [torch.empty_like(g, dtype=torch.float32) for g in gradients if _is_half(g)]
        torch._foreach_copy_(self._wide, [g for g in gradients if _is_half(g)])
        wide = iter(self._wide)
        return [next(wide) if _is_half(g) else g for g in gradients]


def _is_half(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16
