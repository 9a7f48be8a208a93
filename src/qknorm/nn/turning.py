"""Projections of packed self-attention, with queries and keys turned by their positions.

Axes: R rows of a buffer, H heads, D width of one head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qknorm.nn.positions import turn
from qknorm.nn.triton_support import HAS_TRITON, transformed, triton_takes

if HAS_TRITON:
    from qknorm.nn.turn_kernels import fused_turned


def turned(qkv: Tensor, turns: Tensor, bias: Tensor | None = None) -> Tensor:
    """(R, 3H, D) queries, keys and values of one projection, the first two turned by (R, D) ``turns``.

    On a GPU with Triton this is one kernel each way, elsewhere ``plain_turned``: the same function.

    Args:
        qkv: as the projection gives it.
        turns: a row of ``RotaryPositions`` for each row.
        bias: 3 · H · D values, which the projection has added without asking for their gradients: these are
            found here. They change nothing else.
    """
    if triton_takes(qkv) and not transformed(qkv):
        x: Tensor = fused_turned(qkv, turns, bias)
        return x
    return plain_turned(qkv, turns, bias)


def plain_turned(qkv: Tensor, turns: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is not None:
        qkv = (qkv + (bias - bias.detach()).view(qkv.shape[1:])).to(qkv.dtype)
    H = qkv.size(1) // 3
    return torch.cat([turn(qkv.narrow(1, 0, 2 * H), turns.unsqueeze(1)), qkv.narrow(1, 2 * H, H)], dim=1)
