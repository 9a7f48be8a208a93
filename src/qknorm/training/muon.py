"""Muon (Jordan et al. 2024): weight matrices step by the nearest orthogonal matrix to their mean gradient.

n: matrices of one shape, taken at a time; r, c: rows and columns of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qknorm.nn import TiedEmbedding

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of x, x³ and x⁵ in the iteration: as the authors and ``torch.optim.Muon`` have them."""
ROUNDS = 5
SMALLEST = 1e-7
"""Gradients shorter than this are not stretched."""
LIKE_ADAM = 0.2
"""Size of Adam's step, as the root mean square over a matrix, at rate 1 (Liu et al. 2025)."""


class Muon(torch.optim.AdamW):
    """Muon for groups that say how many matrices each parameter holds (``parts``), AdamW for the others.

    A step has the size of Adam's, so both take one learning rate. Each of the matrices that lie in one
    parameter, such as the projections of queries, keys and values, is made orthogonal on its own.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by gradients divided by ``grad_scale``, not where ``found_inf`` is 1, as fused Adam does."""
        if closure is not None:
            raise ValueError("Muon takes no closure.")
        groups = self.param_groups
        for group in groups:
            if "parts" in group:
                self._turn(group)
        self.param_groups = [group for group in groups if "parts" not in group]
        try:
            super().step()
        finally:
            self.param_groups = groups

    def _turn(self, group: dict[str, Any]) -> None:
        scale, skip = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        parameters = [p for p in group["params"] if p.grad is not None]
        parts = [n for p, n in zip(group["params"], group["parts"], strict=True) if p.grad is not None]
        momentum, given = group["momentum"], []
        for parameter, n in zip(parameters, parts, strict=True):
            gradient = parameter.grad if scale is None else parameter.grad / scale
            mean = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
            moved = torch.lerp(gradient, mean, momentum)
            mean.copy_(moved if skip is None else torch.where(skip == 0, moved, mean))
            given.append(torch.lerp(gradient, mean, momentum).bfloat16().view(n, -1, parameter.size(1)))
        for parameter, x in zip(parameters, orthogonal(given), strict=True):
            step = group["lr"] * step_size(x) * x.view_as(parameter)
            moved = parameter * (1.0 - group["lr"] * group["weight_decay"]) - step
            parameter.copy_(moved if skip is None else torch.where(skip == 0, moved, parameter))


def step_size(x: Tensor) -> float:
    """What orthogonal matrices (n, r, c) are multiplied by to be of the size of Adam's steps."""
    return LIKE_ADAM * math.sqrt(max(x.shape[-2:]))


def orthogonal(stacks: Sequence[Tensor]) -> list[Tensor]:
    """``orthogonal_`` of new copies of stacks (n, r, c), those of one shape at a time."""
    found: dict[int, Tensor] = {}
    for shape in {x.shape[1:] for x in stacks}:
        numbers = [i for i, x in enumerate(stacks) if x.shape[1:] == shape]
        joined = orthogonal_(torch.cat([stacks[i] for i in numbers]))
        found |= dict(zip(numbers, torch.split(joined, [len(stacks[i]) for i in numbers]), strict=True))
    return [found[i] for i in range(len(stacks))]


def orthogonal_(x: Tensor) -> Tensor:
    """Turn matrices (n, r, c) into ones with singular values near 1 and the same singular vectors.

    By an iteration of odd polynomials, on the smaller side: values end between 0.7 and 1.2, near enough.
    """
    a, b, c = COEFFICIENTS
    room, wide = x, x.size(1) <= x.size(2)
    x.div_(x.norm(dim=(1, 2), keepdim=True).clamp(min=SMALLEST))
    for left in reversed(range(ROUNDS)):
        square = x @ x.mT if wide else x.mT @ x
        powers = torch.baddbmm(square, square, square, beta=b, alpha=c)
        factors = (powers, x) if wide else (x, powers)
        x = torch.baddbmm(x, *factors, beta=a, out=None if left else room)
    return room


def matrices_of(model: nn.Module) -> tuple[list[nn.Parameter], list[int]]:
    """The model's weight matrices, and how many lie in each; not its tables of embeddings."""
    tables = {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding | TiedEmbedding) for p in m.parameters()
    }
    found = [(name, p) for name, p in model.named_parameters() if p.dim() == 2 and id(p) not in tables]
    return [p for _, p in found], [3 if name.endswith("in_proj_weight") else 1 for name, _ in found]
