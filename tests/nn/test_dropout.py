"""Dropout and its fusions: the rate, the gain, the gradients, and where PyTorch's own is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qknorm.nn.dropout import add_dropped, dropout, hashed, keep, relu_dropped

Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, Function] = {
    "dropout": lambda x: dropout(x, 0.3),
    "add_dropped": lambda x: add_dropped(x, x.sin(), 0.3),
    "relu_dropped": lambda x: relu_dropped(x, 0.3),
}


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_rate_and_mean(p: float) -> None:
    n = 1 << 20
    y = dropout(torch.ones(n, dtype=torch.float64), p)
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - p) < 5 * (p * (1 - p) / n) ** 0.5
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)), rtol=2e-4, atol=0)
    assert abs(y.mean().item() - 1) < 5 * (p / (1 - p) / n) ** 0.5


@pytest.mark.parametrize("draw", [keep, lambda shape, p: hashed(shape, p, torch.device("cpu"))])
def test_values_fall_independently(draw: Callable[[torch.Size, float], Tensor]) -> None:
    """Neighbours come from one random number: no two of its parts may agree more often than by chance."""
    n = 1 << 20
    kept = draw(torch.Size([n]), 0.5).double() * 2 - 1
    for distance in (1, 2, 3, 4, 5, 8, 64, 512, 2048):
        assert abs((kept[:-distance] * kept[distance:]).mean().item()) < 5 / n**0.5


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_hashed_draws_have_the_rate_and_differ(p: float) -> None:
    n, cpu = 1 << 20, torch.device("cpu")
    torch.manual_seed(2)
    draws = torch.stack([hashed(torch.Size([n]), p, cpu) for _ in range(8)]).double()
    spread = (p * (1 - p) / n) ** 0.5
    assert ((1 - draws.mean(1)) - p).abs().max().item() < 5 * spread
    centred = draws - (1 - p)
    correlation = centred @ centred.T / (n * p * (1 - p))
    assert correlation.fill_diagonal_(0).abs().max().item() < 5 / n**0.5


def test_odd_sizes() -> None:
    for count in (0, 1, 2, 3, 5, 7):
        assert keep(torch.Size([count]), 0.3).shape == (count,)
    assert dropout(torch.ones(3, 5, 7), 0.3).shape == (3, 5, 7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str) -> None:
    """With the same draw each time, the function is smooth but at 0, and so are its second derivatives."""

    def drawn(x: Tensor) -> Tensor:
        torch.manual_seed(5)
        return FUNCTIONS[name](x)

    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(drawn, x)
    assert torch.autograd.gradgradcheck(drawn, x)


def test_fusions_are_what_they_say() -> None:
    x, y = torch.randn(64, 64), torch.randn(64, 64)

    def drawn(function: Function, at: Tensor) -> Tensor:
        torch.manual_seed(3)
        return function(at)

    dropped = drawn(lambda t: dropout(t, 0.4), y)
    torch.testing.assert_close(drawn(lambda t: add_dropped(x, t, 0.4), y), x + dropped)
    torch.testing.assert_close(drawn(lambda t: relu_dropped(t, 0.4), y), dropped.relu())


def test_half_precision_and_mixed() -> None:
    x = torch.ones(1000, dtype=torch.bfloat16)
    assert dropout(x, 0.5).dtype == torch.bfloat16
    assert add_dropped(x.float(), x, 0.5).dtype == torch.float32
    assert set(dropout(x, 0.5).tolist()) == {0.0, 2.0}


def test_off() -> None:
    x = torch.randn(8)
    state = torch.get_rng_state()
    assert dropout(x, 0.5, training=False) is x and dropout(x, 0.0) is x
    torch.testing.assert_close(add_dropped(x, x, 0.5, training=False), 2 * x)
    torch.testing.assert_close(relu_dropped(x, 0.0), F.relu(x))
    assert torch.equal(torch.get_rng_state(), state)


def test_same_seed_same_draw() -> None:
    x = torch.ones(1000)
    torch.manual_seed(1)
    first, second = dropout(x, 0.3), dropout(x, 0.3)
    torch.manual_seed(1)
    assert torch.equal(dropout(x, 0.3), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_under_function_transforms(name: str) -> None:
    x = torch.ones(50, 100)
    y = torch.func.vmap(FUNCTIONS[name], randomness="different")(x)
    assert y.shape == x.shape and 0.1 < (y != y.max()).float().mean() < 0.5


@pytest.mark.gpu
def test_compiled_on_a_gpu() -> None:
    """The rate, the gain, the gradient, and another draw at each call and each replay."""
    x = torch.ones(1 << 20, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    compiled = torch.compile(lambda x: (dropout(x, 0.3), relu_dropped(x, 0.3)), fullgraph=True)
    torch.manual_seed(0)
    seen = [kept for _ in range(3) for kept in compiled(x)]
    for y in seen:
        dropped = (y == 0).float().mean().item()
        assert abs(dropped - 0.3) < 5 * (0.21 / x.numel()) ** 0.5
        assert y.unique().tolist() == [0.0, torch.tensor(1 / 0.7, dtype=y.dtype).item()]
    (gradient,) = torch.autograd.grad(seen[0].sum() + 2 * seen[1].sum(), x)
    torch.testing.assert_close(gradient, seen[0].detach() + 2 * seen[1].detach())
    graph, static = torch.cuda.CUDAGraph(), x.detach()
    with torch.no_grad():
        compiled(static)
        with torch.cuda.graph(graph):
            captured = compiled(static)
    for _ in range(3):
        graph.replay()
        seen += [y.clone() for y in captured]
    signs = torch.stack([(y.detach() != 0).float() - 0.7 for y in seen])
    correlation = signs @ signs.T / (x.numel() * 0.21)
    assert correlation.fill_diagonal_(0).abs().max().item() < 6 / x.numel() ** 0.5
