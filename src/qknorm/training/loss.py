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
    if allowed is not None:  # leave the others out rather than mask them: their logits are not computed
        ids = allowed.nonzero().squeeze(1)
        place = wanted.new_full(allowed.shape, -1)
        place[ids] = torch.arange(ids.numel(), device=place.device)
        table, wanted = table.index_select(0, ids), place[wanted]
        bias = None if bias is None else bias.index_select(0, ids)
    loss, nll = _SmoothedLoss.apply(h, table, bias, wanted, smoothing)  # type: ignore[no-untyped-call]
    return loss, nll


class _SmoothedLoss(torch.autograd.Function):
    """Over a table whose rows are all allowed; a wanted id of −1 is one that is not, and costs infinity."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, table: Tensor, bias: Tensor | None, wanted: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        R, V = h.size(0), table.size(0)
        dh, dtable = torch.empty_like(h), torch.zeros_like(table, dtype=torch.float32)
        dbias = torch.zeros(V, dtype=torch.float32, device=h.device)
        loss = nll = torch.zeros((), dtype=torch.float32, device=h.device)
        device = h.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else h.dtype
        hidden, weights = h.to(kind), table.to(kind)
        space = hidden.new_empty(min(ROWS, R), V)  # one for all rounds: fresh memory costs more than sums
        for start in range(0, R, ROWS):
            rows = hidden[start : start + ROWS]
            target = wanted[start : start + ROWS, None]
            logits = torch.mm(rows, weights.T, out=space[: rows.size(0)]).float()
            if bias is not None:
                logits += bias
            right = logits.gather(1, target.clamp(min=0)).masked_fill_(target < 0, -torch.inf)
            mean, top = logits.mean(1, keepdim=True), logits.amax(1, keepdim=True)
            p = logits.sub_(top).exp_()
            total = p.sum(1, keepdim=True)
            norm = total.log() + top
            nll = nll + (norm - right).sum()
            loss = loss + (norm - (1 - smoothing) * right - smoothing * mean).sum()
            # d loss / d logits = p − (1 − ε) · wanted − ε / V
            gradient = p.div_(total).sub_(smoothing / V)
            gradient.scatter_add_(1, target.clamp(min=0), gradient.new_full(target.shape, smoothing - 1))
            narrow = gradient.to(kind)
            dh[start : start + ROWS] = narrow @ weights
            dtable += narrow.T @ rows
            dbias += gradient.sum(0)
        ctx.save_for_backward(dh, dtable.to(table.dtype), dbias if bias is None else dbias.to(bias.dtype))
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        up = grads[0]
        dh, dtable, dbias = ctx.saved_tensors
        return dh * up, dtable * up, dbias * up if ctx.has_bias else None, None, None
