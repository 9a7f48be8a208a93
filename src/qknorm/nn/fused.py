"""Normalised heads in one pass on a GPU: a Triton kernel for what self-attention's projection gives.

The projection writes queries, keys and values of a token side by side. Left to themselves, PyTorch and
its compiler read and write them several times over to normalise and to take them apart (and, backward,
to put them together again); here that is one kernel each way. Where Triton is absent, or off the GPU,
callers use ``plain_heads``, the same function in PyTorch's own operations.

Axes: R rows (tokens), H heads, D width of one head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qknorm.nn.functional import l2_normalize

try:
    import triton
except ImportError:
    triton = None
else:
    from qknorm.nn import kernels

FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ROWS = 32
"""Rows one program of the kernel works on."""


def can_fuse(qkv: Tensor) -> bool:
    """Whether the kernel takes this projection."""
    return triton is not None and qkv.is_cuda and qkv.dtype in FUSED_DTYPES and qkv.size(-1) <= 256


def plain_heads(qkv: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """q̂ · g, k̂ and v, each (R, H, D), of (R, 3H, D) projected heads; ``scale`` is g for each head, (H,)."""
    H = scale.size(0)
    both = torch.nn.functional.pad(scale, (0, H), value=1.0)  # queries times g, keys times 1
    q, k = l2_normalize(qkv.narrow(-2, 0, 2 * H), both.unsqueeze(-1), eps).chunk(2, dim=-2)
    return q, k, qkv.narrow(-2, 2 * H, H)


@torch.library.custom_op("qknorm::normalized_heads", mutates_args=())
def normalized_heads(qkv: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """``plain_heads`` in one kernel; the three results are tensors of their own."""
    R, H, D = qkv.size(0), scale.size(0), qkv.size(2)
    qkv, scale = qkv.contiguous(), scale.float().contiguous()
    q, k, v = (qkv.new_empty(R, H, D) for _ in "qkv")
    if R:
        width = triton.next_power_of_2(D)
        grid = (triton.cdiv(R, ROWS), H)
        kernels.normalize_heads[grid](qkv, scale, q, k, v, R, eps, H, D, width, ROWS)
    return q, k, v


@normalized_heads.register_fake
def _(qkv: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    shape = (qkv.size(0), scale.size(0), qkv.size(2))
    return qkv.new_empty(shape), qkv.new_empty(shape), qkv.new_empty(shape)


@torch.library.custom_op("qknorm::normalized_heads_backward", mutates_args=())
def normalized_heads_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Gradients of qkv and of scale."""
    R, H, D = qkv.size(0), scale.size(0), qkv.size(2)
    dq, dk, dv, qkv, g = (x.contiguous() for x in (dq, dk, dv, qkv, scale.float()))
    dqkv = torch.empty_like(qkv)
    grid = (triton.cdiv(R, ROWS), H)
    parts = qkv.new_empty(grid, dtype=torch.float32)  # each program's share of the scale's gradient
    if R:
        width = triton.next_power_of_2(D)
        kernels.normalize_heads_backward[grid](dq, dk, dv, qkv, g, dqkv, parts, R, eps, H, D, width, ROWS)
    return dqkv, parts.sum(0).to(scale.dtype)


@normalized_heads_backward.register_fake
def _(dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format), torch.empty_like(scale)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    qkv, scale, ctx.eps = inputs
    ctx.save_for_backward(qkv, scale)


def _backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor, None]:
    qkv, scale = ctx.saved_tensors
    # Where somebody differentiates this gradient in turn, it is computed in operations that allow it.
    pull = _plain_backward if torch.is_grad_enabled() else normalized_heads_backward
    dqkv, dscale = pull(dq, dk, dv, qkv, scale, ctx.eps)
    return dqkv, dscale, None


def _plain_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    _, pull = torch.func.vjp(lambda x, g: plain_heads(x, g, eps), qkv, scale)
    dqkv, dscale = pull((dq, dk, dv))
    return dqkv, dscale


normalized_heads.register_autograd(_backward, setup_context=_keep)


@normalized_heads.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], *inputs: Any
) -> tuple[tuple[Tensor, ...], tuple[int, int, int]]:
    results: tuple[Tensor, ...] = torch.vmap(plain_heads, in_dims)(*inputs)
    return results, (0, 0, 0)


@normalized_heads_backward.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    results: tuple[Tensor, ...] = torch.vmap(_plain_backward, in_dims)(*inputs)
    return results, (0, 0)
