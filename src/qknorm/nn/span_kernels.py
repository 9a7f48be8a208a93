"""Attention over spans of keys as Triton kernels, normalisation and dropout inside; for where Triton is.

A program works on one tile of rows of one head. Tiles lie over the flat buffer whatever the sentences are,
and a tile of queries walks over the keys from the first its rows may see to the last. Nothing is added up
by several programs at once, so results are the same at every run. ``spans.py`` has the same thing plainly.

Axes: R rows of the query buffer, Rk of the key buffer, H heads, D width of one head. A row of ``q`` holds
Q_HEADS heads, the queries first; a row of ``kv`` holds K_HEADS, last H of keys, then H of values.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from qknorm.nn.residual_kernels import scramble


@triton.jit
def attend(
    q, kv, g, key_start, key_end, seed, out, lse, R,
    drop: tl.constexpr, boost: tl.constexpr, scale: tl.constexpr, eps: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr,
    NORMALIZE: tl.constexpr, PER_HEAD: tl.constexpr, UNIT_VALUES: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    start = tl.load(key_start + row, mask=row < R, other=0)
    end = tl.load(key_end + row, mask=row < R, other=0)
    sees = start < end
    x = load_some(q, row, row < R, sees, h, col, Q_HEADS, D)
    if NORMALIZE:
        x = normalized(x, tl.load(g + (h if PER_HEAD else 0)).to(tl.float32), eps)
    if DROPOUT:
        state = row_state(head_state(seed, h), row)
    first = tl.min(tl.where(sees, start, 2147483647), axis=0)
    last = tl.max(end, axis=0)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    y = tl.zeros((ROWS, WIDTH), tl.float32)
    for at in range(first, last, KEYS):
        key = at + tl.arange(0, KEYS)
        k = load_rows(kv, key, key < last, K_HEADS - 2 * H + h, col, K_HEADS, D)
        v = load_rows(kv, key, key < last, K_HEADS - H + h, col, K_HEADS, D)
        if NORMALIZE:
            k = normalized(k, 1.0, eps)
        if UNIT_VALUES:
            v = normalized(v, 1.0, eps)
        seen = (key[None, :] >= start[:, None]) & (key[None, :] < end[:, None])
        logits = tl.dot(x, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        logits = tl.where(seen, logits, float("-inf"))  # (ROWS, KEYS), to base 2
        new_top = tl.maximum(top, tl.max(logits, axis=1))
        level = tl.where(new_top > float("-inf"), new_top, 0.0)
        weights = tl.exp2(logits - level[:, None])
        fall = tl.exp2(top - level)
        total = total * fall + tl.sum(weights, axis=1)
        if DROPOUT:
            weights = tl.where(keeps(state[:, None], key[None, :], drop), weights, 0.0)
        y = y * fall[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = new_top
    if DROPOUT:
        y = y * boost
    total = tl.where(sees, total, 1.0)
    there = (row < R)[:, None] & (col < D)[None, :]
    tl.store(out + offsets(row, h, col, H, D), y / total[:, None], mask=there)
    tl.store(lse + h.to(tl.int64) * R + row, tl.where(sees, top + tl.log2(total), 0.0), mask=row < R)


@triton.jit
def differentiate_queries(
    q, kv, g, key_start, key_end, seed, out, lse, dout, dq, delta, parts, R,
    drop: tl.constexpr, boost: tl.constexpr, scale: tl.constexpr, eps: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr,
    NORMALIZE: tl.constexpr, PER_HEAD: tl.constexpr, UNIT_VALUES: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries, parts of g's, and ``delta``: Σ weights · dweights of each row."""
    h = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    start = tl.load(key_start + row, mask=row < R, other=0)
    end = tl.load(key_end + row, mask=row < R, other=0)
    sees = start < end
    x = load_some(q, row, row < R, sees, h, col, Q_HEADS, D)
    gain = 1.0
    if NORMALIZE:
        gain = tl.load(g + (h if PER_HEAD else 0)).to(tl.float32)
        x = normalized(x, gain, eps)
    if DROPOUT:
        state = row_state(head_state(seed, h), row)
    dy = load_some(dout, row, row < R, sees, h, col, H, D)
    y = load_some(out, row, row < R, sees, h, col, H, D)
    mean = tl.sum(y.to(tl.float32) * dy.to(tl.float32), axis=1)  # which the softmax takes off
    flat = h.to(tl.int64) * R + row
    tl.store(delta + flat, mean, mask=row < R)
    level = tl.load(lse + flat, mask=row < R, other=0.0)
    first = tl.min(tl.where(sees, start, 2147483647), axis=0)
    last = tl.max(end, axis=0)
    dx = tl.zeros((ROWS, WIDTH), tl.float32)
    for at in range(first, last, KEYS):
        key = at + tl.arange(0, KEYS)
        k = load_rows(kv, key, key < last, K_HEADS - 2 * H + h, col, K_HEADS, D)
        v = load_rows(kv, key, key < last, K_HEADS - H + h, col, K_HEADS, D)
        if NORMALIZE:
            k = normalized(k, 1.0, eps)
        if UNIT_VALUES:
            v = normalized(v, 1.0, eps)
        seen = (key[None, :] >= start[:, None]) & (key[None, :] < end[:, None])
        logits = tl.dot(x, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        weights = tl.where(seen, tl.exp2(logits - level[:, None]), 0.0)  # (ROWS, KEYS)
        dweights = tl.dot(dy, tl.trans(v), input_precision="ieee")
        if DROPOUT:
            kept = keeps(state[:, None], key[None, :], drop)
            dweights = tl.where(kept, dweights * boost, 0.0)
        dlogits = weights * (dweights - mean[:, None])
        dx += tl.dot(dlogits.to(k.dtype), k, input_precision="ieee")
    dx = dx * scale
    if NORMALIZE:
        x = load_rows(q, row, sees, h, col, Q_HEADS, D).to(tl.float32)
        inverse = inverse_length(x, eps)
        unit = x * inverse[:, None]
        along = tl.sum(unit * dx, axis=1)
        dx = (gain * inverse)[:, None] * (dx - unit * along[:, None])
        tl.store(parts + tl.program_id(0) * H + h, tl.sum(along, axis=0))
    there = (row < R)[:, None] & (col < D)[None, :]
    tl.store(dq + offsets(row, h, col, Q_HEADS, D), dx, mask=there)


@triton.jit
def differentiate_keys(
    q, kv, g, key_start, key_end, query_start, query_end, seed, lse, dout, delta, dkv, R, Rk,
    drop: tl.constexpr, boost: tl.constexpr, scale: tl.constexpr, eps: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr,
    NORMALIZE: tl.constexpr, PER_HEAD: tl.constexpr, UNIT_VALUES: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values; ``delta`` is what the kernel above has found."""
    h = tl.program_id(1)
    key = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    col = tl.arange(0, WIDTH)
    from_row = tl.load(query_start + key, mask=key < Rk, other=0)
    to_row = tl.load(query_end + key, mask=key < Rk, other=0)
    is_seen = from_row < to_row
    k = load_some(kv, key, key < Rk, is_seen, K_HEADS - 2 * H + h, col, K_HEADS, D)
    v = load_some(kv, key, key < Rk, is_seen, K_HEADS - H + h, col, K_HEADS, D)
    gain = 1.0
    if NORMALIZE:
        gain = tl.load(g + (h if PER_HEAD else 0)).to(tl.float32)
        k = normalized(k, 1.0, eps)
    if UNIT_VALUES:
        v = normalized(v, 1.0, eps)
    if DROPOUT:
        state = head_state(seed, h)
    first = tl.min(tl.where(is_seen, from_row, 2147483647), axis=0)
    last = tl.max(to_row, axis=0)
    dk = tl.zeros((KEYS, WIDTH), tl.float32)
    dv = tl.zeros((KEYS, WIDTH), tl.float32)
    for at in range(first, last, ROWS):
        row = at + tl.arange(0, ROWS)
        start = tl.load(key_start + row, mask=row < last, other=0)
        end = tl.load(key_end + row, mask=row < last, other=0)
        flat = h.to(tl.int64) * R + row
        level = tl.load(lse + flat, mask=row < last, other=0.0)
        x = load_some(q, row, row < last, start < end, h, col, Q_HEADS, D)
        dy = load_some(dout, row, row < last, start < end, h, col, H, D)
        mean = tl.load(delta + flat, mask=row < last, other=0.0)
        if NORMALIZE:
            x = normalized(x, gain, eps)
        seen = (key[:, None] >= start[None, :]) & (key[:, None] < end[None, :])
        logits = tl.dot(k, tl.trans(x), input_precision="ieee") * (scale * 1.4426950408889634)
        weights = tl.where(seen, tl.exp2(logits - level[None, :]), 0.0)  # (KEYS, ROWS): turned round
        dweights = tl.dot(v, tl.trans(dy), input_precision="ieee")
        given = weights
        if DROPOUT:
            kept = keeps(row_state(state, row)[None, :], key[:, None], drop)
            given = tl.where(kept, weights * boost, 0.0)
            dweights = tl.where(kept, dweights * boost, 0.0)
        dv += tl.dot(given.to(dy.dtype), dy, input_precision="ieee")
        dlogits = weights * (dweights - mean[None, :])
        dk += tl.dot(dlogits.to(x.dtype), x, input_precision="ieee")
    dk = dk * scale
    if NORMALIZE:
        x = load_rows(kv, key, is_seen, K_HEADS - 2 * H + h, col, K_HEADS, D).to(tl.float32)
        dk = through_norm(x, dk, eps)
    if UNIT_VALUES:
        x = load_rows(kv, key, is_seen, K_HEADS - H + h, col, K_HEADS, D).to(tl.float32)
        dv = through_norm(x, dv, eps)
    there = (key < Rk)[:, None] & (col < D)[None, :]
    tl.store(dkv + offsets(key, K_HEADS - 2 * H + h, col, K_HEADS, D), dk, mask=there)
    tl.store(dkv + offsets(key, K_HEADS - H + h, col, K_HEADS, D), dv, mask=there)


@triton.jit
def offsets(row, head, col, HEADS: tl.constexpr, D: tl.constexpr):
    return row.to(tl.int64)[:, None] * (HEADS * D) + head * D + col[None, :]


@triton.jit
def load_rows(x, row, there, head, col, HEADS: tl.constexpr, D: tl.constexpr):
    there = there[:, None] & (col < D)[None, :]
    return tl.load(x + offsets(row, head, col, HEADS, D), mask=there, other=0.0)


@triton.jit
def load_some(x, row, there, wanted, head, col, HEADS: tl.constexpr, D: tl.constexpr):
    """Zeros for rows not wanted; the load need not wait until these are known."""
    return tl.where(wanted[:, None], load_rows(x, row, there, head, col, HEADS, D), 0.0)


@triton.jit
def inverse_length(x, eps):
    length = tl.sqrt(tl.sum(x * x, axis=1))
    return tl.where(length > eps, 1.0 / length, 0.0)


@triton.jit
def normalized(x, gain, eps):
    wide = x.to(tl.float32)
    return (wide * (gain * inverse_length(wide, eps))[:, None]).to(x.dtype)


@triton.jit
def through_norm(x, dunit, eps):
    """The gradient of rows, of that of their unit rows."""
    inverse = inverse_length(x, eps)
    unit = x * inverse[:, None]
    return inverse[:, None] * (dunit - unit * tl.sum(unit * dunit, axis=1)[:, None])


@triton.jit
def head_state(seed, h):
    return scramble(tl.load(seed).to(tl.uint32) + h.to(tl.uint32) * 0x9E3779B9)


@triton.jit
def row_state(state, row):
    return scramble(state + row.to(tl.uint32) * 0x85EBCA77)


@triton.jit
def keeps(state, key, drop):
    return (scramble(state + key.to(tl.uint32) * 0xC2B2AE3D) >> 8).to(tl.int32) >= drop
