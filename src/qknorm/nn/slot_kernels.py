"""Attention of one decoding step as a Triton kernel; imported only where Triton is.

One program is one query: a head of a hypothesis. It writes the hypothesis's newest key, and reads only the
keys of its ancestors, as many as there are: no mask, and no work for room that is not filled yet.

Axes: B slots, K hypotheses of a slot, H heads, D width of one head, T positions there is room for.
"""
# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32
"""Keys looked at at a time."""


def fused_own_attention(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, ancestors: Tensor, at: Tensor, scale: float
) -> Tensor:
    """Write k and v of the newest positions ``at`` (B,), and attend to them and the ancestors before them.

    q, k, v and the result are (B, K, H, D), keys and values (B, H, T, K, D). Position t of hypothesis k is
    key ancestors[b, k, t], of (B, K, T), among those at t.
    """
    B, K, H, D = q.shape
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    attend_slots[(K, H, B)](
        q, k, v, keys, values, ancestors, at, out, scale, keys.size(2),
        K, H, D, triton.next_power_of_2(D), BLOCK, True, num_warps=2,
    )  # fmt: skip
    return out


def fused_cross_attention(q: Tensor, keys: Tensor, values: Tensor, counts: Tensor, scale: float) -> Tensor:
    """Attend to the first ``counts`` (B,) of keys (B, H, T, D), the same for all hypotheses of a slot."""
    B, K, H, D = q.shape
    q = q.contiguous()
    out = torch.empty_like(q)
    attend_slots[(K, H, B)](
        q, q, q, keys, values, counts, counts, out, scale, keys.size(2),
        K, H, D, triton.next_power_of_2(D), BLOCK, False, num_warps=2,
    )  # fmt: skip
    return out


@triton.jit
def attend_slots(
    q, new_key, new_value, keys, values, ancestors, counts, out, scale, T,
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
    count = tl.load(counts + b).to(tl.int32)  # keys in the cache to look at
    greatest = -1e30
    total = 0.0
    mixed = tl.zeros([WIDTH], dtype=tl.float32)
    if OWN:  # no other program reads the newest key, so nobody need wait for it
        key = tl.load(new_key + row, mask=col < D, other=0.0)
        value = tl.load(new_value + row, mask=col < D, other=0.0)
        to = first + (count * K + k) * D + col
        tl.store(keys + to, key, mask=col < D)
        tl.store(values + to, value, mask=col < D)
        greatest = tl.sum(key.to(tl.float32) * x, axis=0)
        total = 1.0
        mixed = value.to(tl.float32)
    for start in range(0, count, KEYS):
        t = start + tl.arange(0, KEYS)
        there = t < count
        if OWN:
            place = t * K + tl.load(ancestors + (b * K + k) * T + t, mask=there, other=0)
        else:
            place = t
        at = first + place[:, None] * D + col[None, :]
        read = there[:, None] & (col[None, :] < D)
        keys_there = tl.load(keys + at, mask=read, other=0.0).to(tl.float32)
        logit = tl.where(there, tl.sum(keys_there * x[None, :], axis=1), float("-inf"))
        greater = tl.maximum(greatest, tl.max(logit, axis=0))
        shrink = tl.exp(greatest - greater)
        weight = tl.exp(logit - greater)
        values_there = tl.load(values + at, mask=read, other=0.0).to(tl.float32)
        total = total * shrink + tl.sum(weight, axis=0)
        mixed = mixed * shrink + tl.sum(weight[:, None] * values_there, axis=0)
        greatest = greater
    tl.store(out + row, mixed / total, mask=col < D)
