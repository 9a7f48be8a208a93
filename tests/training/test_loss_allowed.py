"""The loss over the subwords of the target side: what is not allowed takes no part."""

import torch

from qknorm.training.loss import Allowed
from support.loss import smoothed_loss


def test_gradients_of_rows_that_are_not_allowed_are_zero():
    torch.manual_seed(0)
    h, table, bias = (torch.randn(shape, requires_grad=True) for shape in ((5, 4), (9, 4), (9,)))
    allowed = torch.tensor([True, False, True, True, False, True, True, False, True])
    loss, _ = smoothed_loss(h, table, bias, torch.tensor([0, 2, 8, 3, 5]), Allowed.of(allowed), 0.1)
    loss.backward()
    for gradient in (table.grad, bias.grad):
        assert gradient[~allowed].eq(0).all() and gradient[allowed].ne(0).all()


def test_a_wanted_subword_that_is_not_allowed_costs_infinity():
    allowed = Allowed.of(torch.tensor([True, False, True]))
    loss, nll = smoothed_loss(torch.randn(2, 4), torch.randn(3, 4), None, torch.tensor([2, 1]), allowed, 0.1)
    assert loss.item() == nll.item() == torch.inf


def test_logits_too_far_apart_for_a_softmax_in_float32_give_a_finite_loss():
    h, table = torch.tensor([[1.0]]), torch.tensor([[0.0], [500.0]])
    loss, nll = smoothed_loss(h, table, None, torch.tensor([0]), None, 0.1)
    torch.testing.assert_close(torch.stack([nll, loss]), torch.tensor([500.0, 0.9 * 500 + 0.1 * 250]))


def test_autocast_is_heeded():
    torch.manual_seed(0)
    h, table = torch.randn(5, 8, requires_grad=True), torch.randn(9, 8, requires_grad=True)
    wanted = torch.arange(5)
    exact = smoothed_loss(h, table, None, wanted, None, 0.1)[0]
    with torch.autocast("cpu", torch.bfloat16):
        near = smoothed_loss(h, table, None, wanted, None, 0.1)[0]
    assert near.dtype == torch.float32 and near != exact
    torch.testing.assert_close(near, exact, rtol=2e-2, atol=0)
    gradients = [torch.autograd.grad(loss, (h, table)) for loss in (near, exact)]
    for a, b in zip(*gradients, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)
