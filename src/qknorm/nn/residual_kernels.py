"""What stands between a Transformer's products, row by row, as Triton kernels; for where Triton is.

``join_rows`` adds a sublayer's answer to the residual stream and normalises the sum for the next sublayer.
A product's bias is added after it, in here. The gradients of biases and of the norm's weights are sums over
rows: each program adds up its own. ``add_up_parts`` adds up the programs' sums.

Axes: R rows, E width; a program takes ROWS of them, ROUNDS times. Places are counted in 32 bits.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def join_rows(
    x, y, bias, seed, weight, shift, z, h, centre, inverse, R, E,
    drop: tl.constexpr, boost: tl.constexpr, eps: tl.constexpr,
    HAS_Y: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    NORMED: tl.constexpr, CENTRED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """z = x + dropout(y + bias); h = norm(z): LayerNorm where CENTRED, else ScaleNorm; z if not NORMED."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row < R)[:, None] & (col < E)[None, :]
    at = row[:, None] * E + col[None, :]
    s = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if HAS_Y:
        answer = tl.load(y + at, mask=there, other=0.0).to(tl.float32)
        if HAS_BIAS:
            answer += tl.load(bias + col, mask=col < E, other=0.0)[None, :]
        if DROPOUT:
            answer = tl.where(stays(seed, at, drop), answer * boost, 0.0)
        s += answer
        tl.store(z + at, s, mask=there)
    if not NORMED:
        normed = s
    elif CENTRED:
        mean = tl.sum(s, axis=1) / E
        s = tl.where(there, s - mean[:, None], 0.0)
        length = tl.rsqrt(tl.sum(s * s, axis=1) / E + eps)
        tl.store(centre + row, mean, mask=row < R)
        w = tl.load(weight + col, mask=col < E, other=0.0)
        normed = s * length[:, None] * w[None, :] + tl.load(shift + col, mask=col < E, other=0.0)[None, :]
        tl.store(inverse + row, length, mask=row < R)
    else:
        length = tl.sqrt(tl.sum(s * s, axis=1))
        length = tl.where(length > eps, 1.0 / length, 0.0)
        normed = s * length[:, None] * tl.load(weight)
        tl.store(inverse + row, length, mask=row < R)
    tl.store(h + at, normed, mask=there)


@triton.jit
def part_rows(
    dz, dh, z, centre, inverse, seed, weight, dx, dy, R, E,
    drop: tl.constexpr, boost: tl.constexpr,
    HAS_DZ: tl.constexpr, HAS_Y: tl.constexpr, DROPOUT: tl.constexpr,
    NORMED: tl.constexpr, CENTRED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of x and y."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row < R)[:, None] & (col < E)[None, :]
    at = row[:, None] * E + col[None, :]
    ds = tl.load(dh + at, mask=there, other=0.0).to(tl.float32)
    if NORMED:
        unit, length = unit_rows(z, centre, inverse, at, row, there, R, CENTRED)
        if CENTRED:
            ds *= tl.load(weight + col, mask=col < E, other=0.0)[None, :]
            mean = tl.sum(ds, axis=1) / E
            along = tl.sum(ds * unit, axis=1) / E
            ds = length[:, None] * (ds - mean[:, None] - unit * along[:, None])
        else:
            ds *= tl.load(weight)
            ds = length[:, None] * (ds - unit * tl.sum(ds * unit, axis=1)[:, None])
    if HAS_DZ:
        ds += tl.load(dz + at, mask=there, other=0.0).to(tl.float32)
    tl.store(dx + at, ds, mask=there)
    if HAS_Y:
        if DROPOUT:
            ds = tl.where(stays(seed, at, drop), ds * boost, 0.0)
        tl.store(dy + at, ds, mask=there)


@triton.jit
def add_up_join(
    dh, z, centre, inverse, dy, parts, R, E,
    HAS_Y: tl.constexpr, NORMED: tl.constexpr, CENTRED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Sums over a program's rows, (3, E) in its row of ``parts``: the gradients of weight, shift and bias."""
    col = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    dweight = tl.zeros((ROWS, COLUMNS), tl.float32)
    dshift = tl.zeros((ROWS, COLUMNS), tl.float32)
    dbias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in tl.static_range(ROUNDS):
        row = (tl.program_id(0) * ROUNDS + turn) * ROWS + tl.arange(0, ROWS)
        there = (row < R)[:, None] & (col < E)[None, :]
        at = row[:, None] * E + col[None, :]
        if NORMED:
            up = tl.load(dh + at, mask=there, other=0.0).to(tl.float32)
            unit, _ = unit_rows(z, centre, inverse, at, row, there, R, CENTRED)
            dweight += up * unit
            if CENTRED:
                dshift += up
        if HAS_Y:
            dbias += tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
    part = parts + tl.program_id(0) * (3 * E) + col
    tl.store(part, tl.sum(dweight, axis=0), mask=col < E)
    tl.store(part + E, tl.sum(dshift, axis=0), mask=col < E)
    tl.store(part + 2 * E, tl.sum(dbias, axis=0), mask=col < E)


@triton.jit
def unit_rows(z, centre, inverse, at, row, there, R, CENTRED: tl.constexpr):
    """Normalised rows before weight and shift, and what they were multiplied by."""
    unit = tl.load(z + at, mask=there, other=0.0).to(tl.float32)
    length = tl.load(inverse + row, mask=row < R, other=0.0)
    if CENTRED:
        unit -= tl.load(centre + row, mask=row < R, other=0.0)[:, None]
    return tl.where(there, unit * length[:, None], 0.0), length


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
    at = row[:, None] * E + col[None, :]
    x = tl.load(u + at, mask=there, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + col, mask=col < E, other=0.0)[None, :]
    x = tl.maximum(x, 0.0)
    if DROPOUT:
        x = tl.where(stays(seed, at, drop), x * boost, 0.0)
    tl.store(v + at, x, mask=there)


@triton.jit
def rectify_backward(
    dv, v, du, parts, R, E,
    boost: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """The gradient of u (v is 0 where nothing came through), and its sums, (E,) in a program's row."""
    col = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in tl.static_range(ROUNDS):
        row = (tl.program_id(0) * ROUNDS + turn) * ROWS + tl.arange(0, ROWS)
        there = (row < R)[:, None] & (col < E)[None, :]
        at = row[:, None] * E + col[None, :]
        came = tl.load(v + at, mask=there, other=0.0) > 0.0
        up = tl.where(came, tl.load(dv + at, mask=there, other=0.0).to(tl.float32) * boost, 0.0)
        tl.store(du + at, up, mask=there)
        total += up
    tl.store(parts + tl.program_id(0) * E + col, tl.sum(total, axis=0), mask=col < E)


@triton.jit
def add_up_rows(x, parts, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROUNDS: tl.constexpr):
    """Sums over a program's rows of x, (R, C), into its row of ``parts``."""
    col = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(ROUNDS):
        row = (tl.program_id(0) * ROUNDS + turn) * ROWS + tl.arange(0, ROWS)
        there = (row < R)[:, None] & (col < C)[None, :]
        at = row.to(tl.int64)[:, None] * C + col[None, :]
        total += tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    tl.store(parts + tl.program_id(0) * C + col, tl.sum(total, axis=0), mask=col < C)


@triton.jit
def add_up_parts(parts, out, C, N, TAIL: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr):
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
        total += tl.load(parts + row[:, None] * (C + TAIL) + col[None, :], mask=there, other=0.0)
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
