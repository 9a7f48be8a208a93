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
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.library import triton_op, wrap_triton

from qknorm.nn.functional import l2_normalize

try:
    import triton
except ImportError:
    triton = None
else:
    from qknorm.nn import kernels

FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FORWARD_ROWS, BACKWARD_ROWS = 16, 8
"""Rows one program (of one warp) works on: the fastest of those tried on an H200."""


def can_fuse(qkv: Tensor) -> bool:
    """Whether the kernel takes this projection (under ``torch.vmap`` and its kin it does not)."""
    if triton is None or not qkv.is_cuda or qkv.dtype not in FUSED_DTYPES or qkv.size(-1) > 256:
        return False
    return torch.compiler.is_compiling() or not is_functorch_wrapped_tensor(qkv)


def plain_heads(qkv: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """g · q̂, k̂ and v, each (…, H, D), of projected heads (…, 3H, D); g has one value or H."""
    H = qkv.size(-2) // 3
    both = F.pad(g.expand(H), (0, H), value=1.0)  # queries times g, keys times 1
    q, k = l2_normalize(qkv.narrow(-2, 0, 2 * H), both.unsqueeze(-1), eps).chunk(2, dim=-2)
    return q, k, qkv.narrow(-2, 2 * H, H)


@triton_op("qknorm::normalized_heads", mutates_args={})
def normalized_heads(qkv: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """``plain_heads`` of (R, 3H, D) in one kernel; the three results are tensors of their own."""
    R, H, D = qkv.size(0), qkv.size(1) // 3, qkv.size(2)
    qkv = qkv.contiguous()
    q, k, v = (qkv.new_empty(R, H, D) for _ in "qkv")
    if R:
        wrap_triton(kernels.normalize_heads)[(triton.cdiv(R, FORWARD_ROWS), H)](
            qkv, g, q, k, v, R, eps,
            H, D, triton.next_power_of_2(D), FORWARD_ROWS, g.numel() > 1, num_warps=1,
        )  # fmt: skip
    return q, k, v


@triton_op("qknorm::normalized_heads_backward", mutates_args={})
def normalized_heads_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, g: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The gradient of qkv, and (H, programs) parts whose sum is that of g."""
    R, H, D = qkv.size(0), qkv.size(1) // 3, qkv.size(2)
    dq, dk, dv, qkv = dq.contiguous(), dk.contiguous(), dv.contiguous(), qkv.contiguous()
    programs = triton.cdiv(R, BACKWARD_ROWS)
    dqkv = torch.empty_like(qkv)
    parts = qkv.new_empty(H, programs, dtype=torch.float32)
    if R:
        wrap_triton(kernels.normalize_heads_backward)[(programs, H)](
            dq, dk, dv, qkv, g, dqkv, parts, R, eps,
            H, D, triton.next_power_of_2(D), BACKWARD_ROWS, g.numel() > 1, num_warps=1,
        )  # fmt: skip
    return dqkv, parts


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    qkv, g, ctx.eps = inputs
    ctx.save_for_backward(qkv, g)


def _backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    qkv, g = ctx.saved_tensors
    if torch.is_grad_enabled():  # somebody differentiates this gradient: use operations that allow it
        wanted = [x for x in (qkv, g) if x.requires_grad]
        found = iter(
            torch.autograd.grad(plain_heads(qkv, g, ctx.eps), wanted, (dq, dk, dv), create_graph=True)
        )
        return next(found) if qkv.requires_grad else None, next(found) if g.requires_grad else None, None
    dqkv, parts = normalized_heads_backward(dq, dk, dv, qkv, g, ctx.eps)
    dg = parts.sum(-1) if g.numel() > 1 else parts.sum().view(1)
    return dqkv, dg.to(g.dtype), None


normalized_heads.register_autograd(_backward, setup_context=_keep)
