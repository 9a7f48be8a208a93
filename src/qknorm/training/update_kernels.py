"""Kernels over all weights at once: the length of the gradient, and the update with all that follows from it.

Weights, Adam's moments, the running mean and the rounded copy lie in flat buffers of one layout. Gradients
lie where autograd left them; a table of their addresses says where. A program takes one piece of a tensor.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def add_up_squares(pointers, halves, owner, begin, count, parts, PIECE: tl.constexpr, ALIGNED: tl.constexpr):
    """Of each piece of the gradient, into ``parts``."""
    piece = tl.program_id(0)
    tensor = tl.load(owner + piece)
    size = tl.load(count + piece)
    gradient = load_gradient(pointers, halves, tensor, tl.load(begin + piece), size, PIECE, ALIGNED)
    tl.store(parts + piece, tl.sum(gradient * gradient, axis=0))


@triton.jit
def move_means(
    pointers, halves, factors, room, owner, begin, count, place,
    means, turned, norm, skip, clip, clip_epsilon, momentum,
    PIECE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Muon's mean gradients, and into ``turned``, for its matrices end to end, what is to be orthogonal."""
    piece = tl.program_id(0)
    tensor = tl.load(owner + piece)
    if (tl.load(skip) == 0.0) & (tl.load(factors + tensor) != 0.0):
        size, start = tl.load(count + piece), tl.load(begin + piece)
        gradient = load_gradient(pointers, halves, tensor, start, size, PIECE, ALIGNED)
        gradient *= tl.minimum(clip / (tl.load(norm) + clip_epsilon), 1.0)
        col = tl.arange(0, PIECE)
        at = tl.multiple_of(tl.load(place + piece), 64) + col
        mean = tl.load(means + at, mask=col < size, other=0.0)
        mean = gradient + momentum * (mean - gradient)
        tl.store(means + at, mean, mask=col < size)
        ahead = gradient + momentum * (mean - gradient)
        tl.store(turned + tl.load(room + tensor) + start + col, ahead, mask=col < size)


@triton.jit
def update_weights(
    pointers, halves, decays, factors, owner, begin, count, place,
    weights, first, second, slow, mean, rounded,
    norm, skip, rate, share, slow_numbers, corrections,
    clip, clip_epsilon,
    beta1: tl.constexpr, beta2: tl.constexpr, epsilon: tl.constexpr,
    DECOUPLED: tl.constexpr, TURNS: tl.constexpr, HAS_SLOW: tl.constexpr,
    HAS_MEAN: tl.constexpr, HAS_ROUNDED: tl.constexpr,
    PIECE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Adam with clipping (the gradient's norm is known by now), the running mean, and rounding.

    Tensors with a factor step by that times what lies where others have their gradient. HAS_SLOW: a slow mean
    of the gradients, too, by ``slow_numbers``, its weight and how far it moves.
    """
    if tl.load(skip) == 0.0:
        piece = tl.program_id(0)
        tensor = tl.load(owner + piece)
        size = tl.load(count + piece)
        gradient = load_gradient(pointers, halves, tensor, tl.load(begin + piece), size, PIECE, ALIGNED)
        # In the buffers a tensor has room up to a multiple of 64, where all is zero and stays so.
        col = tl.arange(0, PIECE)
        there = col < tl.multiple_of((size + 63) // 64 * 64, 64)
        at = tl.multiple_of(tl.load(place + piece), 64) + col
        lr, decay = tl.load(rate), tl.load(decays + tensor)
        w = tl.load(weights + at, mask=there, other=0.0)
        factor = 0.0
        if TURNS:
            factor = tl.load(factors + tensor)
        if factor != 0.0:
            w = w * (1.0 - lr * decay) - lr * factor * gradient
        else:
            gradient *= tl.minimum(clip / (tl.load(norm) + clip_epsilon), 1.0)
            if DECOUPLED:
                w *= 1.0 - lr * decay
            else:
                gradient += decay * w
            m = tl.load(first + at, mask=there, other=0.0)
            v = tl.load(second + at, mask=there, other=0.0)
            m += (1.0 - beta1) * (gradient - m)
            v = beta2 * v + (1.0 - beta2) * gradient * gradient
            correction1, correction2 = tl.load(corrections), tl.load(corrections + 1)
            step = m / correction1
            if HAS_SLOW:
                s = tl.load(slow + at, mask=there, other=0.0)
                s += tl.load(slow_numbers + 1) * (gradient - s)
                tl.store(slow + at, s, mask=there)
                step += tl.load(slow_numbers) * s
            w -= lr * step / (tl.sqrt(v) / tl.sqrt(correction2) + epsilon)
            tl.store(first + at, m, mask=there)
            tl.store(second + at, v, mask=there)
        tl.store(weights + at, w, mask=there)
        if HAS_MEAN:
            moves = tl.load(share)
            if moves != 0.0:
                kept = tl.load(mean + at, mask=there, other=0.0)
                tl.store(mean + at, kept + moves * (w - kept), mask=there)
        if HAS_ROUNDED:
            tl.store(rounded + at, w, mask=there)


@triton.jit
def load_gradient(pointers, halves, tensor, begin, size, PIECE: tl.constexpr, ALIGNED: tl.constexpr):
    """A piece of a gradient, zero past its end; whole pieces in whole vectors where addresses allow it."""
    address = tl.load(pointers + tensor)
    begin = tl.multiple_of(begin, PIECE)
    col = tl.arange(0, PIECE)
    if tl.load(halves + tensor) != 0:
        half = address.to(tl.pointer_type(tl.bfloat16))
        if ALIGNED:
            half = tl.multiple_of(half, 16)
        if size == PIECE:
            gradient = tl.load(half + begin + col).to(tl.float32)
        else:
            gradient = tl.load(half + begin + col, mask=col < size, other=0.0).to(tl.float32)
    else:
        whole = address.to(tl.pointer_type(tl.float32))
        if ALIGNED:
            whole = tl.multiple_of(whole, 16)
        if size == PIECE:
            gradient = tl.load(whole + begin + col)
        else:
            gradient = tl.load(whole + begin + col, mask=col < size, other=0.0)
    return gradient
