"""What stands between a Transformer's products, row by row, as Triton kernels; for where Triton is.

``join_rows`` adds a sublayer's answer to the residual stream and normalises the sum for the next sublayer.
A product's bias is added after it, in here. The backward kernels also add up columns, each program its own
rows: the gradients of the norm's weights and of the bias. ``add_up_parts`` adds up the programs' sums.

Axes: R rows, E width; a program takes ROWS of them.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def join_rows(
    x, y, bias, seed, weight, shift, z, h, centre, inverse, R, E,
    drop: tl.constexpr, boost: tl.constexpr, eps: tl.constexpr,
    HAS_Y: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, CENTRED: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """z = x + dropout(y + bias); h = norm(z): LayerNorm where CENTRED, else ScaleNorm."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row < R)[:, None] & (col < E)[None, :]
    at = row.to(tl.int64)[:, None] * E + col[None, :]
    s = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if HAS_Y:
        answer = tl.load(y + at, mask=there, other=0.0).to(tl.float32)
        if HAS_BIAS:
            answer += tl.load(bias + col, mask=col < E, other=0.0)[None, :]
        if DROPOUT:
            answer = tl.where(stays(seed, at, drop), answer * boost, 0.0)
        s += answer
        tl.store(z + at, s, mask=there)
    if CENTRED:
        mean = tl.sum(s, axis=1) / E
        s = tl.where(there, s - mean[:, None], 0.0)
        length = tl.rsqrt(tl.sum(s * s, axis=1) / E + eps)
        tl.store(centre + row, mean, mask=row < R)
        w = tl.load(weight + col, mask=col < E, other=0.0)
        normed = s * length[:, None] * w[None, :] + tl.load(shift + col, mask=col < E, other=0.0)[None, :]
    else:
        length = tl.sqrt(tl.sum(s * s, axis=1))
        length = tl.where(length > eps, 1.0 / length, 0.0)
        normed = s * length[:, None] * tl.load(weight)
    tl.store(inverse + row, length, mask=row < R)
    tl.store(h + at, normed, mask=there)


@triton.jit
def part_rows(
    dz, dh, z, centre, inverse, seed, weight, dx, dy, parts, R, E,
    drop: tl.constexpr, boost: tl.constexpr,
    HAS_DZ: tl.constexpr, HAS_Y: tl.constexpr, DROPOUT: tl.constexpr, CENTRED: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of x and y, and, (3, E) in a program's row of ``parts``, of weight, shift and bias."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row < R)[:, None] & (col < E)[None, :]
    at = row.to(tl.int64)[:, None] * E + col[None, :]
    unit = tl.load(z + at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(dh + at, mask=there, other=0.0).to(tl.float32)
    length = tl.load(inverse + row, mask=row < R, other=0.0)
    if CENTRED:
        unit -= tl.load(centre + row, mask=row < R, other=0.0)[:, None]
        scaled = up * tl.load(weight + col, mask=col < E, other=0.0)[None, :]
    else:
        scaled = up * tl.load(weight)
    unit = tl.where(there, unit * length[:, None], 0.0)
    along = tl.sum(scaled * unit, axis=1)
    if CENTRED:
        mean = tl.sum(scaled, axis=1) / E
        ds = length[:, None] * (scaled - mean[:, None] - unit * (along / E)[:, None])
    else:
        ds = length[:, None] * (scaled - unit * along[:, None])
    if HAS_DZ:
        ds += tl.load(dz + at, mask=there, other=0.0).to(tl.float32)
    tl.store(dx + at, ds, mask=there)
    part = parts + tl.program_id(0).to(tl.int64) * (3 * E) + col
    tl.store(part, tl.sum(up * unit, axis=0), mask=col < E)
    tl.store(part + E, tl.sum(up, axis=0), mask=col < E)
    if HAS_Y:
        if DROPOUT:
            ds = tl.where(stays(seed, at, drop), ds * boost, 0.0)
        tl.store(dy + at, ds, mask=there)
        tl.store(part + 2 * E, tl.sum(tl.where(there, ds, 0.0), axis=0), mask=col < E)


@triton.jit
def rectify(
    u, bias, seed, v, R, E,
    drop: tl.constexpr, boost: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """v = dropout(relu(u + bias))."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = (row < R)[:, None] & (col < E)[None, :]
    at = row.to(tl.int64)[:, None] * E + col[None, :]
    x = tl.load(u + at, mask=there, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + col, mask=col < E, other=0.0)[None, :]
    x = tl.maximum(x, 0.0)
    if DROPOUT:
        x = tl.where(stays(seed, at, drop), x * boost, 0.0)
    tl.store(v + at, x, mask=there)


@triton.jit
def rectify_backward(dv, v, du, parts, R, E, boost: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The gradient of u (v is 0 where nothing came through), and its sums, (E,) in a program's row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = (row < R)[:, None] & (col < E)[None, :]
    at = row.to(tl.int64)[:, None] * E + col[None, :]
    came = tl.load(v + at, mask=there, other=0.0) > 0.0
    up = tl.where(came, tl.load(dv + at, mask=there, other=0.0).to(tl.float32) * boost, 0.0)
    tl.store(du + at, up, mask=there)
    tl.store(parts + tl.program_id(0).to(tl.int64) * E + col, tl.sum(up, axis=0), mask=col < E)


@triton.jit
def add_up_parts(
    parts, out, C, N: tl.constexpr, TAIL: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr
):
    """(C,) sums over the N rows of ``parts``, (N, C + TAIL); the last TAIL columns add up to one value."""
    column = tl.program_id(0) * COLUMNS
    total = tl.zeros((STRIP, COLUMNS), tl.float32)
    col = column + tl.arange(0, COLUMNS)
    is_tail = column >= C
    wanted = (col < C) | (is_tail & (col - column < TAIL))
    col = tl.where(is_tail, C + col - column, col)
    for at in range(0, N, STRIP):
        row = at + tl.arange(0, STRIP)
        there = (row < N)[:, None] & wanted[None, :]
        total += tl.load(parts + row.to(tl.int64)[:, None] * (C + TAIL) + col[None, :], mask=there, other=0.0)
    sums = tl.sum(total, axis=0)
    tl.store(out + col, sums, mask=col < C)
    tl.store(out + C, tl.sum(sums, axis=0), mask=is_tail)


@triton.jit
def stays(seed, at, drop):
    """Whether dropout keeps the value at this place: ``dropout.stays`` of the same bits."""
    state = scramble(tl.load(seed).to(tl.uint32))
    return (scramble(state ^ at.to(tl.uint32)) >> 8).to(tl.int32) >= drop


@triton.jit
def scramble(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)
