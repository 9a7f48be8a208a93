"""Label-smoothed cross-entropy, output projection included, a few rows at a time.

The logits of a batch are its largest tensor by far. Here they exist for some rows only, and their
gradients are taken on the spot.

Axes: R target positions, E model width, V subwords, A of them that the target side has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from qknorm.nn.triton_support import FUSED_DTYPES, HAS_TRITON, triton_takes

if HAS_TRITON:
    from qknorm.training.loss_kernels import fused_smoothed_loss

ROWS = {"cpu": 512, "cuda": 8192}
"""Target positions whose logits exist at a time."""


class Allowed(NamedTuple):
    """The subwords that the target side has, looked up once for many losses."""

    ids: Tensor  # (A,)
    place: Tensor  # (V,) where each stands among those, -1 for the others

    @classmethod
    def of(cls, mask: Tensor) -> Allowed:
        """From (V,) True for subwords the target side has."""
        ids = mask.nonzero().squeeze(1)
        place = ids.new_full(mask.shape, -1)
        place[ids] = torch.arange(ids.numel(), device=place.device)
        return cls(ids, place)


def output_rows(table: Tensor, bias: Tensor | None, allowed: Allowed | None) -> tuple[Tensor, Tensor | None]:
    """Rows and biases of the allowed subwords: left out, rather than masked, others cost nothing."""
    if allowed is None:
        return table, bias
    return table.index_select(0, allowed.ids), None if bias is None else bias.index_select(0, allowed.ids)


def place_of(wanted: Tensor, allowed: Allowed | None) -> Tensor:
    """Ids as places among the allowed subwords; −1 for others."""
    return wanted if allowed is None else allowed.place[wanted]


def loss_over(
    h: Tensor,
    table: Tensor,
    bias: Tensor | None,
    wanted: Tensor,
    smoothing: float,
    real: Tensor | None,
    agreement: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Summed loss and summed negative log-likelihood of the wanted subwords.

    (1 − ε) · −log p(wanted) + ε · the mean of −log p over all rows of the table, p a softmax over those.

    Args:
        h: (R, E) last hidden states.
        table: (A, E) output rows, of the subwords that are allowed.
        bias: (A,) output biases.
        wanted: (R,) rows of the table; −1 is a subword that is not allowed, and costs infinity.
        smoothing: ε.
        real: (R,) False for positions that do not count; None where all do.
        agreement: α of R-Drop; 0 for none.

    With an ``agreement`` α (R-Drop, Wu et al. 2021), h is (2 R, E), all positions of one pass and then of
    another. The loss is the mean of both passes' and α/4 · (KL(p, q) + KL(q, p)) of their predictions p and
    q: half of what the authors write, which is summed over the passes.
    """
    if can_fuse_loss(h):
        kind = _product_dtype(h)
        counted = torch.ones_like(wanted, dtype=torch.bool) if real is None else real
        rows = table.to(kind)
        loss, nll, *_ = fused_smoothed_loss(h.to(kind), rows, bias, wanted, counted, smoothing, agreement)
        return loss, nll
    if torch.compiler.is_compiling():
        return written_out_loss(h, table, bias, wanted, smoothing, real, agreement)
    if real is None:
        real = torch.ones_like(wanted, dtype=torch.bool)
    by_rows: Any = _AgreeingLoss if agreement else _SmoothedLoss
    loss, nll = by_rows.apply(h, table, bias, wanted, smoothing, real, agreement)
    return loss, nll


def can_fuse_loss(h: Tensor) -> bool:
    """Whether the kernel takes logits of these hidden states."""
    return triton_takes(h) and _product_dtype(h) in FUSED_DTYPES


def _product_dtype(h: Tensor) -> torch.dtype:
    device = h.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else h.dtype


def written_out_loss(
    h: Tensor,
    table: Tensor,
    bias: Tensor | None,
    wanted: Tensor,
    smoothing: float,
    real: Tensor | None,
    agreement: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The same in operations that a compiler turns into one pass over the logits each way."""
    logits = torch.nn.functional.linear(h, table).float()
    if bias is not None:
        logits = logits + bias
    logits = logits.view(2 if agreement else 1, -1, table.size(0))  # (passes, R, A)
    columns = torch.arange(table.size(0), device=h.device)
    right = torch.where(columns == wanted[:, None], logits, 0.0).sum(2)  # a gather would scatter, backward
    right = torch.where(wanted < 0, -torch.inf, right)
    norm = logits.logsumexp(2)
    nll = (norm - right).mean(0)
    loss = (norm - (1 - smoothing) * right - smoothing * logits.mean(2)).mean(0)
    if agreement:
        p, q = logits - norm[:, :, None]  # logarithms
        loss = loss + agreement / 4 * ((p.exp() - q.exp()) * (p - q)).sum(1)  # both divergences
    if real is not None:
        nll, loss = torch.where(real, nll, 0.0), torch.where(real, loss, 0.0)
    return loss.sum(), nll.detach().sum()


class _AgreeingLoss(torch.autograd.Function):
    """``written_out_loss`` of two passes, some positions at a time, their gradients taken on the spot."""

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
        passes = h.detach().view(2, -1, h.size(1))  # (2, R, E)
        shared = [x.detach().requires_grad_() for x in (table, bias) if x is not None]
        found = torch.empty_like(passes)
        sums = [torch.zeros_like(x, dtype=torch.float32) for x in shared]
        loss = nll = torch.zeros((), dtype=torch.float32, device=h.device)
        step = ROWS.get(h.device.type, ROWS["cuda"]) // 2
        for start in range(0, wanted.size(0), step):
            some = slice(start, start + step)
            rows = passes[:, some].flatten(0, 1).requires_grad_()
            with torch.enable_grad():
                part, part_nll = written_out_loss(
                    rows, shared[0], shared[1] if bias is not None else None,
                    wanted[some], smoothing, real[some], agreement,
                )  # fmt: skip
                dh, *others = torch.autograd.grad(part, [rows, *shared])
            found[:, some] = dh.view(2, -1, h.size(1))
            for total, other in zip(sums, others, strict=True):
                total += other
            loss, nll = loss + part.detach(), nll + part_nll
        dtable, *dbias = (total.to(x.dtype) for total, x in zip(sums, shared, strict=True))
        ctx.save_for_backward(found.flatten(0, 1), dtable, *dbias)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dh, dtable, *dbias = (grads[0] * x for x in ctx.saved_tensors)
        return dh, dtable, dbias[0] if dbias else None, *[None] * 4


class _SmoothedLoss(torch.autograd.Function):
    """Over a table whose rows are all allowed; a wanted id of −1 is one that is not, and costs infinity."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        table: Tensor,
        bias: Tensor | None,
        wanted: Tensor,
        smoothing: float,
        real: Tensor,
        _: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        R, V = h.size(0), table.size(0)
        dh, dtable = torch.empty_like(h), torch.zeros_like(table, dtype=torch.float32)
        dbias = torch.zeros(V, dtype=torch.float32, device=h.device)
        loss = nll = torch.zeros((), dtype=torch.float32, device=h.device)
        device = h.device.type
        step = ROWS.get(device, ROWS["cuda"])
        kind = _product_dtype(h)
        hidden, weights = h.to(kind), table.to(kind)
        space = hidden.new_empty(min(step, R), V)  # one for all rounds: fresh memory costs more than sums
        for start in range(0, R, step):
            rows = hidden[start : start + step]
            target, counted = wanted[start : start + step, None], real[start : start + step, None]
            logits = torch.mm(rows, weights.T, out=space[: rows.size(0)]).float()
            if bias is not None:
                logits += bias
            right = logits.gather(1, target.clamp(min=0)).masked_fill_(target < 0, -torch.inf)
            mean, top = logits.mean(1, keepdim=True), logits.amax(1, keepdim=True)
            p = logits.sub_(top).exp_()
            total = p.sum(1, keepdim=True)
            norm = total.log() + top
            nll = nll + (norm - right).where(counted, 0.0).sum()
            loss = loss + (norm - (1 - smoothing) * right - smoothing * mean).where(counted, 0.0).sum()
            # d loss / d logits = p − (1 − ε) · wanted − ε / V
            gradient = p.div_(total).sub_(smoothing / V)
            gradient.scatter_add_(1, target.clamp(min=0), gradient.new_full(target.shape, smoothing - 1))
            narrow = gradient.masked_fill_(~counted, 0.0).to(kind)
            dh[start : start + step] = narrow @ weights
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
        return dh * up, dtable * up, dbias * up if ctx.has_bias else None, *[None] * 4
