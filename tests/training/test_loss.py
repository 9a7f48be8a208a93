"""The fused projection and loss against the formula written out, and its gradients."""

import pytest
import torch

from qknorm.training.loss import Allowed, written_out_loss
from qknorm.training.loss_rows import ROWS
from support.compare import error
from support.loss import smoothed_loss

R, E, V = 11, 6, 17


def written_out(h, table, bias, wanted, allowed, smoothing):
    logits = h @ table.T + (0 if bias is None else bias)
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -1e9)
    log_p = logits.log_softmax(-1)
    nll = -log_p.gather(1, wanted[:, None]).sum()
    kept = torch.ones(V, dtype=torch.bool) if allowed is None else allowed
    even = -log_p[:, kept].mean(-1).sum()
    return (1 - smoothing) * nll + smoothing * even, nll


@pytest.mark.parametrize("rows", [1, 4, 512])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_value_and_gradients(monkeypatch, rows, masked, with_bias, smoothing):
    monkeypatch.setitem(ROWS, "cpu", rows)
    torch.manual_seed(0)
    h, table, bias = torch.randn(R, E), torch.randn(V, E), torch.randn(V)
    allowed = None
    wanted = torch.randint(0, 8, (R,))
    if masked:
        allowed = torch.ones(V, dtype=torch.bool)
        allowed[8:13] = False
    inputs = [x.requires_grad_() for x in ([h, table, bias] if with_bias else [h, table])]
    arguments = (h, table, bias if with_bias else None, wanted, allowed, smoothing)
    found, nll = smoothed_loss(*arguments[:4], None if allowed is None else Allowed.of(allowed), smoothing)
    expected, expected_nll = written_out(
        *(x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in arguments)
    )
    assert error(found, expected) < 1e-6 and error(nll, expected_nll) < 1e-6
    assert not nll.requires_grad
    grads = torch.autograd.grad(found / 3, inputs)
    for a, b in zip(grads, torch.autograd.grad(expected / 3, inputs), strict=True):
        assert error(a, b) < 1e-6


def test_bfloat16_stays_close():
    torch.manual_seed(0)
    h, table, bias = torch.randn(R, E), torch.randn(V, E), torch.randn(V)
    wanted = torch.randint(0, V, (R,))
    full, _ = smoothed_loss(h, table, bias, wanted, None, 0.1)
    half, _ = smoothed_loss(h.bfloat16(), table, bias, wanted, None, 0.1)
    assert half.dtype == torch.float32 and error(half, full) < 2e-2


@pytest.mark.parametrize("rows", [4, 512])
def test_positions_that_do_not_count(monkeypatch, rows):
    """They add nothing and get no gradient, even where their wanted subword is none of the target side's."""
    monkeypatch.setitem(ROWS, "cpu", rows)
    torch.manual_seed(0)
    h, table, bias = (torch.randn(shape, requires_grad=True) for shape in ((R, E), (V, E), (V,)))
    mask = torch.arange(V) > 1
    real = torch.arange(R) % 3 != 1
    wanted = torch.where(real, torch.randint(2, V, (R,)), 0)
    allowed = Allowed.of(mask)
    part = smoothed_loss(h[real], table, bias, wanted[real], allowed, 0.1)
    whole = smoothed_loss(h, table, bias, wanted, allowed, 0.1, real)
    place, chosen = allowed.place[wanted], (table[allowed.ids], bias[allowed.ids])
    compiled_form = written_out_loss(h, *chosen, place, 0.1, real)
    for found in (whole, compiled_form):
        assert error(found[0], part[0]) < 1e-6 and error(found[1], part[1]) < 1e-6
        wanted_grads = torch.autograd.grad(part[0], (h, table, bias), retain_graph=True)
        for a, b in zip(
            torch.autograd.grad(found[0], (h, table, bias), retain_graph=True), wanted_grads, strict=True
        ):
            assert error(a, b) < 1e-6
