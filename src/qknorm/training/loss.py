"""Label-smoothed cross-entropy, output projection included, a few rows at a time.

The logits of a batch are its largest tensor by far. Here they exist for some rows only, and their
gradients are taken on the spot.

Axes: R target positions, E model width, V subwords.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 512
"""Target positions whose logits exist at a time."""


def smoothed_loss(
    h: Tensor, table: Tensor, bias: Tensor | None, wanted: Tensor, allowed: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Summed loss and summed negative log-likelihood of the wanted subwords.

    (1 − ε) · −log p(wanted) + ε · the mean of −log p over the allowed subwords, p a softmax over those.

    Args:
        h: (R, E) last hidden states.
        table: (V, E) output rows.
        bias: (V,) output biases.
        wanted: (R,) ids.
        allowed: (V,) True for subwords the target side has; None for all.
        smoothing: ε.
    """
    loss, nll = _SmoothedLoss.apply(h, table, bias, wanted, allowed, smoothing)  # type: ignore[no-untyped-call]
    return loss, nll


class _SmoothedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        table: Tensor,
        bias: Tensor | None,
        wanted: Tensor,
        allowed: Tensor | None,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        V = table.size(0)
        share = table.new_ones(V, dtype=torch.float32) if allowed is None else allowed.float()
        share = share * (smoothing / share.sum())  # ε spread over what is allowed
        closed = None if allowed is None else ~allowed
        dh, dtable = torch.empty_like(h), torch.zeros_like(table, dtype=torch.float32)
        dbias = torch.zeros(V, dtype=torch.float32, device=h.device)
        loss = nll = torch.zeros((), dtype=torch.float32, device=h.device)
        weights = table.to(h.dtype)
        for start in range(0, h.size(0), ROWS):
            rows = slice(start, start + ROWS)
            logits = torch.nn.functional.linear(h[rows], weights, None if bias is None else bias.to(h.dtype))
            logits = logits.float()
            if closed is not None:
                logits.masked_fill_(closed, -torch.inf)
            norm = logits.logsumexp(dim=1)
            target = wanted[rows, None]
            right = logits.gather(1, target).squeeze(1)
            nll = nll + (norm - right).sum()
            even = logits if closed is None else logits.masked_fill(closed, 0.0)
            loss = loss + (norm - (1 - smoothing) * right).sum() - (even @ share).sum()
            # d loss / d logits = p − (1 − ε) · wanted − ε · allowed / n
            gradient = logits.sub_(norm[:, None]).exp_().sub_(share)
            gradient.scatter_add_(1, target, gradient.new_full(target.shape, smoothing - 1))
            narrow = gradient.to(h.dtype)
            dh[rows] = narrow @ weights
            dtable += narrow.T @ h[rows]
            dbias += gradient.sum(0)
        ctx.save_for_backward(dh, dtable.to(table.dtype), dbias if bias is None else dbias.to(bias.dtype))
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        up = grads[0]
        dh, dtable, dbias = ctx.saved_tensors
        return dh * up, dtable * up, dbias * up if ctx.has_bias else None, None, None, None
