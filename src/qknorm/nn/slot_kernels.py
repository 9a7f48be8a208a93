"""Attention of one decoding step as a Triton kernel; imported only where Triton is.

One program is one query: a head of a hypothesis. It reads only the keys of its own ancestors, as many as
there are so far: no mask, and no work for room that is not filled yet.

Axes: B slots, K hypotheses of a slot, H heads, D width of one head, T positions there is room for.
"""
# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32
"""Keys looked at at a time."""


def fused_slot_attention(
    q: Tensor, keys: Tensor, values: Tensor, ancestors: Tensor | None, counts: Tensor, scale: float
) -> Tensor:
    """softmax(scale · q kᵀ) v over the first ``counts`` (B,) keys; q and the result (B, K, H, D).

    With ancestors (B, K, T), keys are (B, H, T, K, D) and position t of hypothesis k is key
    ancestors[b, k, t] of those at t; without, keys are (B, H, T, D), the same for all hypotheses.
    """
    B, K, H, D = q.shape
    q = q.contiguous()
    out = torch.empty_like(q)
    attend_slots[(K, H, B)](
        q, keys, values, counts if ancestors is None else ancestors, counts, out, scale, keys.size(2),
        K, H, D, triton.next_power_of_2(D), BLOCK, ancestors is not None, num_warps=2,
    )  # fmt: skip
    return out


@triton.jit
def attend_slots(
    q, keys, values, ancestors, counts, out, scale, T,
    K: tl.constexpr, H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    KEYS: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(0)
    h = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    col = tl.arange(0, WIDTH)
    row = ((b * K + k) * H + h) * D + col
    x = tl.load(q + row, mask=col < D, other=0.0).to(tl.float32) * scale
    first = (b * H + h) * T * D * (K if OWN else 1)
    count = tl.load(counts + b).to(tl.int32)
    greatest = -1e30
    total = 0.0
    mixed = tl.zeros([WIDTH], dtype=tl.float32)
    for start in range(0, count, KEYS):
        t = start + tl.arange(0, KEYS)
        there = t < count
        if OWN:
            place = t * K + tl.load(ancestors + (b * K + k) * T + t, mask=there, other=0)
        else:
            place = t
        at = first + place[:, None] * D + col[None, :]
        read = there[:, None] & (col[None, :] < D)
        key = tl.load(keys + at, mask=read, other=0.0).to(tl.float32)
        logit = tl.where(there, tl.sum(key * x[None, :], axis=1), float("-inf"))
        greater = tl.maximum(greatest, tl.max(logit, axis=0))
        shrink = tl.exp(greatest - greater)
        weight = tl.exp(logit - greater)
        value = tl.load(values + at, mask=read, other=0.0).to(tl.float32)
        total = total * shrink + tl.sum(weight, axis=0)
        mixed = mixed * shrink + tl.sum(weight[:, None] * value, axis=0)
        greatest = greater
    tl.store(out + row, mixed / total, mask=col < D)
