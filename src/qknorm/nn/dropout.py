"""Dropout, alone and together with its neighbours.

On a CPU, PyTorch spends more than ten times longer on drawing its Bernoulli numbers than on using them.
Here 16 random bits decide over one value, cut out of whole 64-bit numbers; so a rate is met to within
2⁻¹⁷. In code compiled for a GPU, where PyTorch's generator takes longer than reading and writing the
values, each is decided by a hash of its place and of one random number a call, which the compiler fuses
with what stands around it. Elsewhere these are PyTorch's own functions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

LEVELS = 1 << 16


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Zero each value with probability p, multiply the others by 1 / (1 − p)."""
    if not training or p == 0.0:
        return x
    if x.is_cuda and torch.compiler.is_compiling():
        return torch.where(hashed(x.shape, p, x.device), x * (1.0 / (1.0 - p)), 0.0)
    if not on_cpu(x):
        return F.dropout(x, p)
    y: Tensor = _Dropout.apply(x, p)  # type: ignore[no-untyped-call]
    return y


def add_dropped(x: Tensor, y: Tensor, p: float, training: bool = True) -> Tensor:
    """x + dropout(y)."""
    if not training or p == 0.0 or x.dtype != y.dtype or not on_cpu(y):
        return x + dropout(y, p, training)
    z: Tensor = _AddDropped.apply(x, y, p)  # type: ignore[no-untyped-call]
    return z


def relu_dropped(x: Tensor, p: float, training: bool = True) -> Tensor:
    """dropout(relu(x))."""
    if not training or p == 0.0 or not on_cpu(x):
        return F.relu(dropout(x, p, training))  # keeps its result alone for the backward pass
    y: Tensor = _ReluDropped.apply(x, p)  # type: ignore[no-untyped-call]
    return y


def keep(shape: torch.Size, p: float) -> Tensor:
    """Drawn afresh: 1 with probability 1 − p, else 0; int8, on the CPU."""
    count = shape.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    drawn = bits.view(torch.int16)[:count].view(shape)  # evenly from −32,768 to 32,767
    return drawn.ge_(_dropped_levels(p) - LEVELS // 2).to(torch.int8)


def hashed(shape: torch.Size, p: float, device: torch.device) -> Tensor:
    """Drawn afresh: True with probability 1 − p; only whole operations, for a compiler to fuse."""
    seed = torch.randint(1 << 31, (1,), device=device, dtype=torch.int64).to(torch.int32)
    place = torch.arange(shape.numel(), device=device, dtype=torch.int32)
    return stays(scramble(scramble(seed) ^ place), p).view(shape)


def stays(bits: Tensor, p: float) -> Tensor:
    """True with probability 1 − p, by the upper 24 of 32 random bits."""
    return ((bits >> 8) & 0xFFFFFF) >= int(p * 2**24)


def scramble(x: Tensor) -> Tensor:
    """Every bit of an int32 spread over all (the finish of MurmurHash3)."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * -0x7A143595
    x = (x ^ ((x >> 13) & 0x7FFFF)) * -0x3D4D51CB
    return x ^ ((x >> 16) & 0xFFFF)


def _dropped_levels(p: float) -> int:
    return min(max(round(p * LEVELS), 1), LEVELS - 1)


def _gain(p: float) -> float:
    """What makes up for the values dropped, at the rate as it is met."""
    return LEVELS / (LEVELS - _dropped_levels(p))


def on_cpu(x: Tensor) -> bool:
    """Whether x is a plain tensor on the CPU, outside compiled code and ``torch.func``."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not is_functorch_wrapped_tensor(x)


def _drop(x: Tensor, kept: Tensor, p: float) -> Tensor:
    return kept.to(x.dtype).mul_(x).mul_(_gain(p))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        kept = keep(x.shape, p)
        ctx.save_for_backward(kept)
        ctx.p = p
        return _drop(x, kept, p)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return _drop(grads[0], kept, ctx.p), None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, p: float) -> Tensor:
        kept = keep(y.shape, p)
        ctx.save_for_backward(kept)
        ctx.p = p
        return torch.addcmul(x, y, kept.to(y.dtype), value=_gain(p))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (kept,) = ctx.saved_tensors
        return grads[0], _drop(grads[0], kept, ctx.p), None


class _ReluDropped(torch.autograd.Function):
    """Keeps nothing but its result, which the next layer keeps too: it is 0 where the gradient is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        y = _drop(x, keep(x.shape, p), p).relu_()
        ctx.save_for_backward(y)
        ctx.p = p
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grads[0], y, 0.0).mul_(_gain(ctx.p)), None
