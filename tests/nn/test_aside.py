"""Gradients of weights on a second stream: the same numbers, and whole when they are read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qknorm.nn import aside as aside_module
from qknorm.nn.aside import AHEAD, Aside, linear, linear_pair

CPU = torch.device("cpu")
gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def leaves(device: torch.device, rows: int = 12, width: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(rows, width), (rows + 5, width), (3 * width, width), (width, width), (3 * width,)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [x.to(device).requires_grad_() for x in made]


def gradients(x: Tensor, y: Tensor, pair: Tensor, last: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Of both inputs and both weights, through a chain of products."""
    q, kv = linear_pair(x, y, pair, bias.detach(), x.size(1))
    answer = linear(q.sin() * kv.mean(0)[: q.size(1)], last, bias.detach()[: last.size(0)])
    return torch.autograd.grad(answer.square().sum(), (x, y, pair, last))


def test_gradients_are_those_of_plain_products() -> None:
    given = leaves(CPU)
    plain = gradients(*given)
    with Aside(CPU).used():
        found = gradients(*given)
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_gradients_are_the_numeric_ones() -> None:
    x, y, pair, last, bias = leaves(CPU, rows=3, width=2)
    fixed = bias.detach()
    with Aside(CPU).used():
        assert torch.autograd.gradcheck(lambda x, y, pair: linear_pair(x, y, pair, fixed, 2), (x, y, pair))
        assert torch.autograd.gradcheck(lambda x, last: linear(x, last), (x, last))


def test_outside_its_block_nothing_is_aside() -> None:
    x, _, _, last, _ = leaves(CPU)
    aside = Aside(CPU)
    with pytest.raises(ZeroDivisionError), aside.used():
        assert "_Linear" in type(linear(x, last).grad_fn).__name__
        1 / 0  # noqa: B018
    assert "_Linear" not in type(linear(x, last).grad_fn).__name__


@gpu
@needs_gpu
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("ahead", [0, 1, AHEAD])
def test_on_a_gpu_gradients_are_whole_when_they_are_read(
    captured: bool, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products large enough that an early reader would meet unwritten memory, many times over."""
    monkeypatch.setattr(aside_module, "AHEAD", ahead)
    device = torch.device("cuda", 0)
    given = leaves(device, rows=2048, width=512)
    plain = gradients(*given)
    aside, found = Aside(device), [torch.empty_like(g) for g in plain]

    def take() -> None:
        with aside.used():
            made = gradients(*given)
        for kept, gradient in zip(found, made, strict=True):
            kept.copy_(gradient)

    take()
    replay = take
    if captured:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            take()
        replay = graph.replay
    for _ in range(20):
        for kept in found:
            kept.zero_()
        replay()
        for a, b in zip(found, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@gpu
@needs_gpu
def test_what_was_read_is_let_go_before_the_end() -> None:
    """A long chain takes no more memory than its saved inputs and some gradients."""
    device = torch.device("cuda", 0)
    weights = [torch.eye(512, device=device, requires_grad=True) for _ in range(4 * AHEAD)]
    x = torch.randn(8192, 512, device=device)
    size = x.numel() * x.element_size()
    with Aside(device).used():
        h = x
        for weight in weights:
            h = linear(h, weight)
        up = torch.ones_like(h)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = torch.autograd.grad(h, weights, up)
        taken = torch.cuda.max_memory_allocated() - before - sum(g.numel() * 4 for g in found)
    assert taken < (AHEAD + 8) * size
