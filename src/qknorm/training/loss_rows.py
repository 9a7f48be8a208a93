"""The smoothed loss with its output projection, some rows at a time, their gradients taken on the spot.

The logits of a batch are its largest tensor by far. Here they exist for some rows only.

Axes: P passes over a position (2 with R-Drop), R target positions, E model width, A subwords that the target
side has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = {"cpu": 512, "cuda": 8192}
"""Rows of logits that exist at a time."""


class LossByRows(torch.autograd.Function):
    """Summed loss and negative log-likelihood; arguments as ``loss_over`` has them."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        table: Tensor,
        bias: Tensor | None,
        wanted: Tensor,
        smoothing: float,
        real: Tensor,
        agreement: float,
    ) -> tuple[Tensor, Tensor]:
        P, R, A = 2 if agreement else 1, wanted.size(0), table.size(0)
        kind = product_dtype(h)
        hidden, weights = h.to(kind).view(P, R, -1), table.to(kind)
        dh, dtable = torch.empty_like(h), torch.zeros_like(table, dtype=torch.float32)
        dbias = torch.zeros(A, dtype=torch.float32, device=h.device)
        loss = nll = torch.zeros((), dtype=torch.float32, device=h.device)
        step = ROWS.get(h.device.type, ROWS["cuda"]) // P
        space = hidden.new_empty(P * min(step, R), A)  # one for all rounds: fresh memory costs more than sums
        for start in range(0, R, step):
            some = slice(start, start + step)
            rows = hidden[:, some].flatten(0, 1)
            logits = torch.mm(rows, weights.T, out=space[: rows.size(0)]).float()
            if bias is not None:
                logits += bias
            by_pass = logits.view(P, -1, A)
            target, counted = wanted[some, None], real[some, None]
            if agreement:
                lost, missed = _smooth_pairs(by_pass, target, smoothing, agreement)
            else:
                lost, missed = _smooth_rows(logits, target, smoothing)
            loss, nll = loss + lost.where(counted, 0.0).sum(), nll + missed.where(counted, 0.0).sum()
            by_pass.masked_fill_(~counted, 0.0)
            narrow = logits.to(kind)
            dh.view(P, R, -1)[:, some] = (narrow @ weights).view(P, -1, h.size(1))
            dtable += narrow.T @ rows
            dbias += logits.sum(0)
        ctx.save_for_backward(dh, dtable.to(table.dtype), dbias if bias is None else dbias.to(bias.dtype))
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        up = grads[0]
        dh, dtable, dbias = ctx.saved_tensors
        return dh * up, dtable * up, dbias * up if ctx.has_bias else None, *[None] * 4


def product_dtype(h: Tensor) -> torch.dtype:
    """The dtype in which hidden states are multiplied by the table."""
    device = h.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else h.dtype


def _smooth_rows(logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Loss and negative log-likelihood, (R, 1), of (R, A) logits, which become their gradient."""
    right = logits.gather(1, target.clamp(min=0)).masked_fill_(target < 0, -torch.inf)
    mean, top = logits.mean(1, keepdim=True), logits.amax(1, keepdim=True)
    p = logits.sub_(top).exp_()
    total = p.sum(1, keepdim=True)
    norm = total.log() + top
    # d loss / d logits = p − (1 − ε) · wanted − ε / A
    gradient = p.div_(total).sub_(smoothing / logits.size(1))
    gradient.scatter_add_(1, target.clamp(min=0), gradient.new_full(target.shape, smoothing - 1))
    return norm - (1 - smoothing) * right - smoothing * mean, norm - right


def _smooth_pairs(
    logits: Tensor, target: Tensor, smoothing: float, agreement: float
) -> tuple[Tensor, Tensor]:
    """``_smooth_rows`` of (2, R, A) logits, the two passes over each position, which draw to each other."""
    logs = logits.log_softmax(2)
    at = target.clamp(min=0)
    right = logs.gather(2, at.expand(2, -1, -1)).mean(0).masked_fill_(target < 0, -torch.inf)
    loss = -(1 - smoothing) * right - smoothing * logs.mean(2, keepdim=True).mean(0)
    (p, q), apart = logs.exp(), logs[0] - logs[1]
    for gradient, own, other, away in zip(logits, (p, q), (q, p), (apart, -apart), strict=True):
        divergence = (own * away).sum(1, keepdim=True)  # KL(own, other)
        loss = loss + agreement / 4 * divergence
        # half of d loss / d logits above, and α/4 · d (KL(p, q) + KL(q, p)) / d logits
        pull = own * (away - divergence) + own - other
        gradient.copy_((own - smoothing / logits.size(2)) / 2 + agreement / 4 * pull)
        gradient.scatter_add_(1, at, gradient.new_full(target.shape, (smoothing - 1) / 2))
    return loss, -right
