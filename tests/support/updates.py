"""Updates by kernels beside the same by an optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from support.triton import DEVICE

UPDATES = 6


def update_both(
    kernels: Any,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    rounds: Sequence[bool],
    clip: float,
) -> list[Tensor]:
    """Six updates by ``FlatUpdate`` and by an optimiser of others like them; returns the mean of these.

    The fourth is skipped, the second leaves the mean where it is. Gradients of parameters that are rounded
    are in bfloat16. A slow mean counts more, and moves less, with every update.
    """
    mean = [p.detach().clone() for p in parameters]
    for number in range(UPDATES):
        rate, share, skips = 0.01 * (number + 1), 0.0 if number == 1 else 0.3, number == 3
        gradients = [torch.randn_like(p) * 0.1 for p in parameters]
        gradients = [g.bfloat16() if r else g for g, r in zip(gradients, rounds, strict=True)]
        norm = kernels.norm(gradients)
        slow = number / 2, 0.1 / (number + 1)
        kernels.apply(norm, *(torch.tensor(x, device=DEVICE) for x in (float(skips), rate, share, slow)))
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g.float()
        expected = torch.nn.utils.clip_grad_norm_(parameters, clip)
        torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0.0)
        if skips:
            continue
        for group in optimizer.param_groups:
            group |= {"lr": rate, "slow": slow}
        optimizer.step()
        for m, p in zip(mean, parameters, strict=True):
            m.lerp_(p.detach(), share)
    return mean
