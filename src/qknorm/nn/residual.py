"""What stands between the products of a Transformer layer: bias, dropout, residual addition, norm, ReLU.

On a GPU with Triton each function here is one kernel forward and a few backward; the plain ones beside them
say what these compute.

Axes: R rows, E width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qknorm.nn.dropout import scramble, stays
from qknorm.nn.norms import ScaleNorm
from qknorm.nn.triton_support import HAS_TRITON, triton_takes

if HAS_TRITON:
    from qknorm.nn.residual_ops import fused_join_norm, fused_relu_dropout

MAX_WIDTH = 4096


def can_fuse_residual(x: Tensor, norm: nn.Module) -> bool:
    """Whether the kernels take rows like x's and this norm: a whole LayerNorm, ScaleNorm, or none."""
    known = isinstance(norm, ScaleNorm | nn.Identity)
    if isinstance(norm, nn.LayerNorm):
        known = norm.weight is not None and norm.bias is not None
    return known and triton_takes(x) and x.size(-1) <= MAX_WIDTH


def join_norm(
    x: Tensor,
    y: Tensor | None,
    bias: Tensor | None,
    norm: nn.Module,
    dropout_p: float,
    seed: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """x + dropout(y + bias), and its norm in ``dtype``; with y None, x itself and its norm.

    Args:
        x: (R, E) the residual stream.
        y: (R, E) a sublayer's answer, whose bias is not in it yet.
        norm: ``nn.LayerNorm``, ``ScaleNorm``, or ``nn.Identity`` for none.
        seed: one whole number below 2³¹, on the device: it decides what dropout drops. None: no dropout.
    """
    seed = None if dropout_p == 0.0 else seed
    if not can_fuse_residual(x, norm):
        return plain_join_norm(x, y, bias, norm, dropout_p, seed, dtype)
    weight = shift = None
    eps = 0.0
    if isinstance(norm, ScaleNorm):
        weight, eps = norm.scale, norm.eps
    elif isinstance(norm, nn.LayerNorm):
        weight, shift, eps = norm.weight, norm.bias, norm.eps
    elif y is None:
        return x, x.to(dtype)
    z, h, *_ = fused_join_norm(x, y, bias, weight, shift, seed, dropout_p, eps, dtype)
    return x if y is None else z, h


def plain_join_norm(
    x: Tensor,
    y: Tensor | None,
    bias: Tensor | None,
    norm: nn.Module,
    dropout_p: float,
    seed: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    if y is not None:
        x = x + seeded_dropout(y.to(x.dtype) if bias is None else y + bias, dropout_p, seed)
    return x, norm(x).to(dtype)


def relu_dropout(u: Tensor, bias: Tensor | None, dropout_p: float, seed: Tensor | None) -> Tensor:
    """dropout(relu(u + bias)), in u's dtype; u is (R, E)."""
    seed = None if dropout_p == 0.0 else seed
    if triton_takes(u):
        v: Tensor = fused_relu_dropout(u, bias, seed, dropout_p)
        return v
    return plain_relu_dropout(u, bias, dropout_p, seed)


def plain_relu_dropout(u: Tensor, bias: Tensor | None, dropout_p: float, seed: Tensor | None) -> Tensor:
    return seeded_dropout(F.relu(u if bias is None else u + bias), dropout_p, seed).to(u.dtype)


def seeded_dropout(x: Tensor, p: float, seed: Tensor | None) -> Tensor:
    """Dropout that a seed decides: by a hash of it and of a value's place."""
    if seed is None:
        return x
    place = torch.arange(x.numel(), device=x.device, dtype=torch.int32)
    kept = stays(scramble(scramble(seed.int()) ^ place), p).view(x.shape)
    return torch.where(kept, x * (1.0 / (1.0 - p)), 0.0)
