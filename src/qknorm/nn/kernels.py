"""The Triton kernels of ``qknorm.nn.fused``; imported only where Triton is.

One program works on ROWS rows of one head: its queries, its keys, its values.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def normalize_heads(
    qkv, g, q, k, v, R, eps,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PER_HEAD: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    scale = tl.load(g + (h if PER_HEAD else 0)).to(tl.float32)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row[:, None] < R) & (col[None, :] < D)
    source = qkv + row[:, None] * (3 * H * D) + h * D + col[None, :]
    to = row[:, None] * (H * D) + h * D + col[None, :]
    x = tl.load(source, mask=there, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, axis=1))
    factor = tl.where(length > eps, scale / length, 0.0)
    tl.store(q + to, x * factor[:, None], mask=there)
    x = tl.load(source + H * D, mask=there, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, axis=1))
    factor = tl.where(length > eps, 1.0 / length, 0.0)
    tl.store(k + to, x * factor[:, None], mask=there)
    tl.store(v + to, tl.load(source + 2 * H * D, mask=there), mask=there)


@triton.jit
def normalize_heads_backward(
    dq, dk, dv, qkv, g, dqkv, parts, R, eps,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PER_HEAD: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    scale = tl.load(g + (h if PER_HEAD else 0)).to(tl.float32)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row[:, None] < R) & (col[None, :] < D)
    at = row[:, None] * (3 * H * D) + h * D + col[None, :]
    flat = row[:, None] * (H * D) + h * D + col[None, :]
    # y = g x / ‖x‖:  dx = g / ‖x‖ (dy − x̂ (x̂ · dy)),  dg = Σ x̂ · dy
    x = tl.load(qkv + at, mask=there, other=0.0).to(tl.float32)
    dy = tl.load(dq + flat, mask=there, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, axis=1))
    inverse = tl.where(length > eps, 1.0 / length, 0.0)
    unit = x * inverse[:, None]
    along = tl.sum(unit * dy, axis=1)
    dx = (scale * inverse)[:, None] * (dy - unit * along[:, None])
    tl.store(dqkv + at, dx, mask=there)
    tl.store(parts + h * tl.num_programs(0) + tl.program_id(0), tl.sum(along, axis=0))
    x = tl.load(qkv + at + H * D, mask=there, other=0.0).to(tl.float32)
    dy = tl.load(dk + flat, mask=there, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, axis=1))
    inverse = tl.where(length > eps, 1.0 / length, 0.0)
    unit = x * inverse[:, None]
    dx = inverse[:, None] * (dy - unit * tl.sum(unit * dy, axis=1)[:, None])
    tl.store(dqkv + at + H * D, dx, mask=there)
    tl.store(dqkv + at + 2 * H * D, tl.load(dv + flat, mask=there), mask=there)
