"""Gradients of weights on a second stream of a GPU.

Backward, earlier layers wait for the gradients of their outputs; for those of weights, biases and norms
nothing waits until the update. Neither kind fills a GPU where a batch has a few thousand rows, so they may
overlap.

Axes: R rows, E input width, O output width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

AHEAD = 16
"""Pieces of work by which the second stream may fall behind: about as many as a layer has.

What they read stays in memory; in a whole step that would be every layer's gradients.
"""
T = TypeVar("T")
_current: Aside | None = None


class Aside:
    """A second stream beside the current one; on another device than a GPU, no stream at all."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._begun: deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = deque()  # and what is read

    @contextmanager
    def used(self) -> Iterator[None]:
        """What is computed in this block, its backward too, has its weights' gradients found aside.

        They may be read after the block. A weight may stand in one operation only: where it stands in more,
        autograd adds their gradients up, too early.
        """
        global _current
        before, _current = _current, self
        try:
            yield
        finally:
            _current = before
            self._join()

    def do(self, work: Callable[[], T], *read: Tensor) -> T:
        """What ``work`` makes of the tensors that it reads, after all that has been begun before."""
        if self._stream is None:
            return work()
        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            done = work()
        self._begun.append((self._stream.record_event(), read))
        if len(self._begun) > AHEAD:
            through, _ = self._begun.popleft()
            here.wait_event(through)
        return done

    def _join(self) -> None:
        if self._stream is not None and self._begun:  # a capture may not wait for what it does not hold
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        self._begun.clear()


def current_aside() -> Aside | None:
    """That of the block around this, for a backward to keep; code that is compiled has none."""
    return None if torch.compiler.is_compiling() else _current


def do_aside(aside: Aside | None, work: Callable[[], T], *read: Tensor) -> T:
    """``Aside.do``; where there is none, here and now."""
    return work() if aside is None else aside.do(work, *read)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(R, E) rows times a (O, E) weight, plus a bias that is not learned here."""
    if (aside := current_aside()) is None:
        return F.linear(x, weight, bias)
    product: Any = _Linear
    answer: Tensor = product.apply(x, weight, bias, aside)
    return answer


def linear_pair(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, split: int) -> tuple[Tensor, Tensor]:
    """x times the first ``split`` rows of a weight, and y times the others; as ``linear``."""
    if (aside := current_aside()) is None:
        sides = [split, weight.size(0) - split]
        (w_x, w_y), (b_x, b_y) = torch.split(weight, sides), torch.split(bias, sides)
        return F.linear(x, w_x, b_x), F.linear(y, w_y, b_y)
    product: Any = _LinearPair
    of_x, of_y = product.apply(x, y, weight, bias, split, aside)
    return of_x, of_y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, aside: Aside) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.aside = aside
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (up,) = grads
        x, weight = ctx.saved_tensors
        dweight = ctx.aside.do(lambda: up.T @ x, up, x)
        return up @ weight, dweight, None, None


class _LinearPair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, split: int, aside: Aside
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y, weight)
        ctx.split, ctx.aside = split, aside
        return F.linear(x, weight[:split], bias[:split]), F.linear(y, weight[split:], bias[split:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_y = grads
        x, y, weight = ctx.saved_tensors

        def dweight() -> Tensor:
            both = torch.empty_like(weight)
            torch.mm(of_x.T, x, out=both[: ctx.split])
            torch.mm(of_y.T, y, out=both[ctx.split :])
            return both

        found = ctx.aside.do(dweight, of_x, of_y, x, y)
        return of_x @ weight[: ctx.split], of_y @ weight[ctx.split :], found, None, None, None
