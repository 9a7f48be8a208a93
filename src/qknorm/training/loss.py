"""Label-smoothed cross-entropy, output projection included, by the quickest way that the device has.

Axes: R target positions, E model width, V subwords, A of them that the target side has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from qknorm.nn.triton_support import FUSED_DTYPES, HAS_TRITON, triton_takes
from qknorm.training.loss_rows import LossByRows, product_dtype

if HAS_TRITON:
    from qknorm.training.loss_kernels import fused_smoothed_loss


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
        kind = product_dtype(h)
        counted = torch.ones_like(wanted, dtype=torch.bool) if real is None else real
        rows = table.to(kind)
        loss, nll, *_ = fused_smoothed_loss(h.to(kind), rows, bias, wanted, counted, smoothing, agreement)
        return loss, nll
    if torch.compiler.is_compiling():
        return written_out_loss(h, table, bias, wanted, smoothing, real, agreement)
    if real is None:
        real = torch.ones_like(wanted, dtype=torch.bool)
    by_rows: Any = LossByRows
    loss, nll = by_rows.apply(h, table, bias, wanted, smoothing, real, agreement)
    return loss, nll


def can_fuse_loss(h: Tensor) -> bool:
    """Whether the kernel takes logits of these hidden states."""
    return triton_takes(h) and product_dtype(h) in FUSED_DTYPES


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
