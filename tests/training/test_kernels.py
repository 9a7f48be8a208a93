"""The kernels of loss and update against PyTorch's own operations."""

import math

import pytest
import torch

from qknorm.training.ademamix import AdEMAMix
from qknorm.training.flat import Layout, joined
from qknorm.training.loss import written_out_loss
from qknorm.training.step import empty_slots
from support.triton import DEVICE, INTERPRETED, anywhere
from support.updates import update_both


@pytest.mark.parametrize(
    "rows, width, subwords, has_bias", [(5, 16, 37, True), (600, 8, 130, True), (7, 8, 9, False)]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
class TestLoss:
    pytestmark = anywhere

    def test_equals_cross_entropy(self, rows, width, subwords, has_bias, smoothing):
        from qknorm.training.loss_kernels import fused_smoothed_loss

        torch.manual_seed(0)
        h, table = (torch.randn(n, width, device=DEVICE, requires_grad=True) for n in (rows, subwords))
        bias = torch.randn(subwords, device=DEVICE, requires_grad=True) if has_bias else None
        learned = [x for x in (h, table, bias) if x is not None]
        wanted = torch.randint(0, subwords, (rows,), device=DEVICE)
        real = torch.rand(rows, device=DEVICE) < 0.8
        loss, nll, *_ = fused_smoothed_loss(h, table, bias, wanted, real, smoothing)
        found = torch.autograd.grad(loss * 0.3, learned)
        logits = torch.nn.functional.linear(h, table, bias)[real]
        expected = torch.nn.functional.cross_entropy(
            logits, wanted[real], reduction="sum", label_smoothing=smoothing
        )
        plain = torch.nn.functional.cross_entropy(logits, wanted[real], reduction="sum")
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(nll, plain, rtol=1e-5, atol=1e-4)
        for a, b in zip(found, torch.autograd.grad(expected * 0.3, learned), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("agreement", [1.0, 5.0])
    def test_two_passes_are_drawn_to_each_other(self, rows, width, subwords, has_bias, smoothing, agreement):
        from qknorm.training.loss_kernels import fused_smoothed_loss

        torch.manual_seed(0)
        h = torch.randn(2 * rows, width, device=DEVICE, requires_grad=True)
        table = torch.randn(subwords, width, device=DEVICE, requires_grad=True)
        bias = torch.randn(subwords, device=DEVICE, requires_grad=True) if has_bias else None
        learned = [x for x in (h, table, bias) if x is not None]
        wanted = torch.randint(0, subwords, (rows,), device=DEVICE)
        real = torch.rand(rows, device=DEVICE) < 0.8
        loss, nll, *_ = fused_smoothed_loss(h, table, bias, wanted, real, smoothing, agreement)
        found = torch.autograd.grad(loss * 0.3, learned)
        expected, plain = written_out_loss(h, table, bias, wanted, smoothing, real, agreement)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(nll, plain, rtol=1e-5, atol=1e-3)
        for a, b in zip(found, torch.autograd.grad(expected * 0.3, learned), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)

    def test_an_impossible_subword_costs_infinity(self, rows, width, subwords, has_bias, smoothing):
        from qknorm.training.loss_kernels import fused_smoothed_loss

        h, table = torch.randn(rows, width, device=DEVICE), torch.randn(subwords, width, device=DEVICE)
        wanted = torch.full((rows,), -1, device=DEVICE)
        real = torch.arange(rows, device=DEVICE) == 1
        loss, nll, *_ = fused_smoothed_loss(h, table, None, wanted, real, smoothing)
        assert loss.item() == nll.item() == math.inf


def parameters_and_gradients():
    torch.manual_seed(1)
    shapes = [(33, 129), (5000,), (1,), (64, 64), (3, 7)]
    parameters = [torch.nn.Parameter(torch.randn(shape, device=DEVICE)) for shape in shapes]
    rounds = [len(shape) == 2 for shape in shapes]
    return parameters, rounds


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, AdEMAMix])
@pytest.mark.parametrize("clip", [0.5, math.inf])
class TestUpdate:
    pytestmark = anywhere

    def test_equals_the_optimiser(self, kind, clip):
        """Weights, moments, running mean and rounded copies after some updates, one of them skipped."""
        from qknorm.training.update import FlatUpdate

        ours, rounds = parameters_and_gradients()
        theirs, _ = parameters_and_gradients()

        def optimizer(parameters):
            groups = [{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:]}]
            return kind(groups, betas=(0.9, 0.98), weight_decay=0.0, eps=1e-8)

        optimizers = optimizer(ours), optimizer(theirs)
        empty_slots(optimizers[0], torch.device(DEVICE))
        copies = [
            torch.nn.Parameter(p.detach().bfloat16()) if r else None
            for p, r in zip(ours, rounds, strict=True)
        ]
        flat_mean = joined([p.detach().clone() for p in ours])
        update = FlatUpdate(optimizers[0], ours, clip, flat_mean, copies)
        update.follow()
        mean = update_both(update, optimizers[1], theirs, rounds, clip)
        assert update.steps.item() == 5
        means = Layout.of(ours).views(flat_mean, ours)
        for p, q, c, m, n in zip(ours, theirs, copies, means, mean, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(m, n, rtol=1e-5, atol=1e-6)
            if c is not None:  # the interpreter cuts digits off where a GPU rounds
                torch.testing.assert_close(c, p.bfloat16(), rtol=2**-7 if INTERPRETED else 0.0, atol=0.0)
            assert optimizers[0].state[p].keys() == optimizers[1].state[q].keys()
            for name, value in optimizers[1].state[q].items():
                same = {"rtol": 1e-5, "atol": 1e-7, "check_device": name != "step"}
                torch.testing.assert_close(optimizers[0].state[p][name], value, **same)


def test_joined_tensors_stay_what_they_are():
    tensors = [torch.arange(6.0).view(2, 3), torch.tensor(7.0), torch.arange(130.0)]
    before = [t.clone() for t in tensors]
    flat = joined(tensors)
    for tensor, old, view in zip(tensors, before, Layout.of(tensors).views(flat, tensors), strict=True):
        assert torch.equal(tensor, old)
        tensor += 1
        assert torch.equal(view, old + 1)
