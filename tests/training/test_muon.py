"""Muon against its formula, PyTorch's own, and its kernels against it."""

import math

import pytest
import torch

from qknorm.config import TrainingSettings
from qknorm.model import ModelSettings, Transformer
from qknorm.training.averaging import Averaging
from qknorm.training.flat import Layout, joined
from qknorm.training.muon import Muon, matrices_of, orthogonal, step_size
from qknorm.training.step import Step, empty_slots, make_optimizer
from support.triton import DEVICE, INTERPRETED, anywhere
from support.updates import update_both

CPU = torch.device("cpu")


def small_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        40, ModelSettings(d_model=32, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1, length=20)
    )


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8)])
def test_matrices_come_out_nearly_orthogonal(shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    (found,) = orthogonal([x.bfloat16()])
    s = torch.linalg.svdvals(found.float())
    assert s.min() > 0.5 and s.max() < 1.35
    left, _, right = torch.linalg.svd(x, full_matrices=False)
    near = torch.einsum("nij,nij->n", found.float(), left @ right) / s.square().sum(-1).sqrt()
    assert (near / math.sqrt(min(shape[1:])) > 0.97).all()


def test_steps_are_those_of_pytorch():
    torch.manual_seed(0)
    shapes = [(16, 16), (24, 8), (8, 24), (16, 16)]
    ours, theirs = ([torch.nn.Parameter(torch.randn(s, generator=rng)) for s in shapes] for rng in (
        torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)))  # fmt: skip
    groups = [{"params": ours, "parts": [1] * 4, "momentum": 0.9, "lr": 0.02}]
    mine = Muon(groups, weight_decay=0.1)
    other = torch.optim.Muon(theirs, 0.02, 0.1, 0.9, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        mine.step()
        other.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=2e-3)  # a step's values are near 0.02; bfloat16
        mean, expected = mine.state[p]["momentum_buffer"], other.state[q]["momentum_buffer"]
        torch.testing.assert_close(mean, expected)


def test_parts_of_a_parameter_are_turned_each_on_its_own():
    torch.manual_seed(0)
    whole = torch.nn.Parameter(torch.randn(24, 8))
    thirds = [torch.nn.Parameter(x.clone()) for x in whole.detach().chunk(3)]
    whole.grad = torch.randn(24, 8)
    for third, gradient in zip(thirds, whole.grad.chunk(3), strict=True):
        third.grad = gradient.clone()
    for parameters, parts in (([whole], [3]), (thirds, [1, 1, 1])):
        Muon([{"params": parameters, "parts": parts, "momentum": 0.9, "lr": 0.1}]).step()
    torch.testing.assert_close(whole.detach(), torch.cat([x.detach() for x in thirds]))


def test_matrices_of_a_model_are_its_layers_weights():
    model = small_model()
    matrices, parts = matrices_of(model)
    named = {id(p): name for name, p in model.named_parameters()}
    names = {named[id(p)]: n for p, n in zip(matrices, parts, strict=True)}
    assert sum(parts) == 4 + 8 + 2 * 2  # of attention and feed-forward
    assert names["decoder.0.cross_attn.in_proj_weight"] == 3 and names["encoder.0.ff.inner.weight"] == 1
    assert not any("embedding" in name or "languages" in name for name in names)
    optimizer = make_optimizer(model, TrainingSettings(optimizer="muon", weight_decay=0.1), CPU)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(map(id, model.parameters()))
    decays = {named[id(p)]: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decays["embedding.weight"] == decays["encoder.0.ff.inner.weight"] == 0.1
    assert decays["encoder.0.ff.inner.bias"] == 0.0


def test_scaled_gradients_and_skipped_steps():
    """As fused Adam has it: gradients are divided by the one, and nothing is done where the other is 1."""
    torch.manual_seed(0)
    found = []
    for scale, skipping in ((1.0, False), (4.0, False), (4.0, True)):
        p = torch.nn.Parameter(torch.eye(8))
        optimizer = Muon([{"params": [p], "parts": [1], "momentum": 0.9, "lr": torch.tensor(0.1)}])
        for skip in (0.0, 1.0) if skipping else (0.0,):
            p.grad = torch.full((8, 8), math.nan) if skip else scale * torch.arange(64.0).view(8, 8).sin()
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(skip)
            optimizer.step()
        found.append((p.detach(), optimizer.state[p]["momentum_buffer"]))
    for p, mean in found[1:]:
        torch.testing.assert_close(p, found[0][0])
        torch.testing.assert_close(mean, found[0][1])


@anywhere
@pytest.mark.parametrize("clip", [0.5, math.inf])
def test_kernels_equal_the_optimiser(clip):
    """Weights, means of gradients, running mean and rounded copies after some updates, one skipped."""
    from qknorm.training.update import FlatUpdate

    def made():
        torch.manual_seed(1)
        shapes = [(48, 16), (70,), (16, 16), (33, 10), (10, 33), (5, 7)]
        parameters = [torch.nn.Parameter(torch.randn(s).to(DEVICE)) for s in shapes]
        turned = [parameters[i] for i in (0, 2, 3, 4)]
        groups = [
            {"params": [parameters[1]], "weight_decay": 0.0},
            {"params": turned, "parts": [3, 1, 1, 1], "momentum": 0.9},
            {"params": [parameters[5]]},
        ]
        return parameters, Muon(groups, betas=(0.9, 0.98), weight_decay=0.1)

    (ours, mine), (theirs, other) = made(), made()
    rounds = [p.dim() == 2 and len(p) != 5 for p in ours]
    empty_slots(mine, torch.device(DEVICE))
    copies = [
        torch.nn.Parameter(p.detach().bfloat16()) if r else None for p, r in zip(ours, rounds, strict=True)
    ]
    flat_mean = joined([p.detach().clone() for p in ours])
    update = FlatUpdate(mine, ours, clip, flat_mean, copies)
    update.follow()
    mean = update_both(update, other, theirs, rounds, clip)
    size = 0.06 * max(step_size(x) for x in update._turn.stacks)
    close = {"rtol": 1e-5, "atol": size * (0.05 if INTERPRETED else 0.02)}  # the interpreter cuts digits off
    means = Layout.of(ours).views(flat_mean, ours)
    for p, q, c, m, n in zip(ours, theirs, copies, means, mean, strict=True):
        torch.testing.assert_close(p, q, **close)
        torch.testing.assert_close(m, n, **close)
        if c is not None:
            torch.testing.assert_close(c, p.bfloat16(), rtol=2**-7 if INTERPRETED else 0.0, atol=0.0)
        for name, value in other.state[q].items():
            if name != "step":
                torch.testing.assert_close(mine.state[p][name], value, rtol=1e-5, atol=1e-6)


def test_its_state_is_kept_and_restored():
    settings = TrainingSettings(optimizer="muon")
    model = small_model()
    step = Step(model, settings, CPU, Averaging(settings, model))
    for p in step.parameters:
        p.grad = torch.randn_like(p)
    step.optimizer.step()
    kept = step.tensors()
    assert "optimizer.momentum_buffer.encoder.0.ff.inner.weight" in kept
    assert "optimizer.exp_avg.embedding.weight" in kept
    again = Step(small_model(), settings, CPU, Averaging(settings, model))
    again.restore(kept)
    assert again.tensors().keys() == kept.keys()
    for name, value in again.tensors().items():
        torch.testing.assert_close(value, kept[name])
