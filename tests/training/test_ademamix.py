"""AdEMAMix against its formula; tests/training/test_kernels.py holds the kernels to it."""

import math

import numpy as np
import torch

from qknorm.config import TrainingSettings
from qknorm.model import ModelSettings, Transformer
from qknorm.training.ademamix import SLOW, AdEMAMix
from qknorm.training.averaging import Averaging
from qknorm.training.step import Step

CPU = torch.device("cpu")
BETAS = 0.9, 0.98


def gradients(count: int, shape: tuple[int, ...] = (3, 4)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]


def made(weight_decay: float = 0.0) -> tuple[torch.nn.Parameter, AdEMAMix]:
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4))
    return parameter, AdEMAMix([{"params": [parameter]}], betas=BETAS, eps=1e-8, weight_decay=weight_decay)


def test_steps_are_those_of_the_formula():
    parameter, optimizer = made(weight_decay=0.1)
    w = parameter.detach().numpy().copy()
    m, v, s = (np.zeros_like(w) for _ in range(3))
    for t, gradient in enumerate(gradients(9), start=1):
        rate, weight, move = 0.01 * t, t / 3, 0.1 / t
        g = gradient.numpy()
        m = BETAS[0] * m + (1 - BETAS[0]) * g
        v = BETAS[1] * v + (1 - BETAS[1]) * g**2
        s = (1 - move) * s + move * g
        step = (m / (1 - BETAS[0] ** t) + weight * s) / (np.sqrt(v / (1 - BETAS[1] ** t)) + 1e-8)
        w = w - rate * 0.1 * w - rate * step
        optimizer.param_groups[0] |= {"lr": rate, "slow": (weight, move)}
        parameter.grad = gradient
        optimizer.step()
    np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-6)
    np.testing.assert_allclose(optimizer.state[parameter][SLOW].numpy(), s, rtol=1e-6)


def test_without_the_slow_mean_it_is_adamw():
    (ours, mine), (theirs, _) = made(), made()
    other = torch.optim.AdamW([theirs], lr=0.02, betas=BETAS, eps=1e-8, weight_decay=0.1)
    mine.param_groups[0] |= {"lr": 0.02, "slow": (0.0, 0.01), "weight_decay": 0.1}
    for gradient in gradients(9):
        ours.grad, theirs.grad = gradient, gradient.clone()
        mine.step()
        other.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_scaled_gradients_and_skipped_steps():
    """As fused Adam has it: gradients are divided by the one, and nothing is done where the other is 1."""
    found = []
    for scale, skips in ((1.0, (0.0, 0.0)), (4.0, (0.0, 1.0, 0.0))):
        parameter, optimizer = made()
        optimizer.param_groups[0] |= {"lr": torch.tensor(0.1), "slow": torch.tensor([2.0, 0.05])}
        given = iter(gradients(2))
        for skip in skips:
            parameter.grad = torch.full_like(parameter, math.nan) if skip else scale * next(given)
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(skip)
            optimizer.step()
        found.append((parameter.detach(), optimizer.state[parameter]))
    torch.testing.assert_close(*(parameter for parameter, _ in found))
    for name, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], value)


def test_its_state_is_kept_and_restored():
    settings = TrainingSettings(optimizer="ademamix", max_steps=10)
    size = ModelSettings(d_model=32, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1, length=20)
    steps = []
    for _ in range(2):
        model = Transformer(40, size)
        steps.append(Step(model, settings, CPU, Averaging(settings, model)))
    for p in steps[0].parameters:
        p.grad = torch.randn_like(p)
    steps[0].optimizer.step()
    kept = steps[0].tensors()
    assert "optimizer.exp_avg_slow.encoder.0.ff.inner.weight" in kept
    steps[1].restore(kept)
    again = steps[1].tensors()
    assert again.keys() == kept.keys()
    for name, value in again.items():
        torch.testing.assert_close(value, kept[name])
