"""What self-attention's projection gives, as attention takes it: g · q̂, k̂ and v.

Axes: H heads, D width of one head.
"""

from __future__ import annotations

from torch import Tensor

from qknorm.nn.functional import plain_heads
from qknorm.nn.triton_support import HAS_TRITON, transformed, triton_takes

if HAS_TRITON:
    from qknorm.nn.kernels import fused_heads


def normalized_heads(qkv: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """g · q̂, k̂ and v, each (…, H, D), of projected heads (…, 3H, D); g has one value or H.

    On a GPU with Triton this is one kernel each way, elsewhere ``plain_heads``: the same function.
    """
    if not can_fuse(qkv):
        return plain_heads(qkv, g, eps)
    shape = (*qkv.shape[:-2], qkv.size(-2) // 3, qkv.size(-1))
    q, k, v = fused_heads(qkv.flatten(0, -3), g, eps)
    return q.view(shape), k.view(shape), v.view(shape)


def can_fuse(qkv: Tensor) -> bool:
    """Whether the kernel takes this projection (under ``torch.vmap`` and its kin it does not)."""
    return triton_takes(qkv) and qkv.size(-1) <= 256 and not transformed(qkv)
