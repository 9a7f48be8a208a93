"""AdEMAMix (Pagliardini, Ablin & Grangier 2024): Adam with a second, slow mean of the gradients.

Where gradients are noisy, a mean over some thousand updates still knows where they have been pointing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SLOW = "exp_avg_slow"


class AdEMAMix(torch.optim.Optimizer):
    """AdamW whose steps follow m + weight · s, with s the slow mean, over the root of the mean square.

    A group's ``slow`` is that weight and how far s moves at an update, two numbers or a tensor of two. Both
    change on the way (``schedule.slow_at``), so they are set with the learning rate.
    """

    def __init__(self, groups: list[dict[str, Any]], **settings: Any) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "slow": (0.0, 0.0)} | settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by gradients divided by ``grad_scale``, not where ``found_inf`` is 1, as fused Adam does."""
        if closure is not None:
            raise ValueError("AdEMAMix takes no closure.")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        scale, skip = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        weight, share = group["slow"]
        if not state:
            state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq", SLOW)}
            state["step"] = torch.zeros(())
        gradient = gradient if scale is None else gradient / scale
        steps = state["step"] + 1
        first = torch.lerp(state["exp_avg"], gradient, 1.0 - beta1)
        second = torch.lerp(state["exp_avg_sq"], gradient.square(), 1.0 - beta2)
        slow = state[SLOW] + share * (gradient - state[SLOW])
        first_share, second_share = (1.0 - beta ** steps.double() for beta in (beta1, beta2))
        size = second.sqrt() / second_share.sqrt() + group["eps"]
        step = (first / first_share + weight * slow) / size
        moved = parameter * (1.0 - group["lr"] * group["weight_decay"]) - group["lr"] * step
        new = {"step": steps, "exp_avg": first, "exp_avg_sq": second, SLOW: slow}
        for kept, value in [(parameter, moved), *((state[name], value) for name, value in new.items())]:
            kept.copy_(value if skip is None else torch.where(skip == 0, value, kept))
