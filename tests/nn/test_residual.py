"""What stands between products: the plain functions against PyTorch's, the kernels against the plain ones.

Kernels run on a CUDA device, or in Triton's interpreter with TRITON_INTERPRET=1.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qknorm.nn import ScaleNorm
from qknorm.nn.residual import (
    can_fuse_residual,
    join_norm,
    plain_join_norm,
    plain_relu_dropout,
    relu_dropout,
    seeded_dropout,
)
from support.triton import DEVICE, INTERPRETED, anywhere

CASES = [(37, 24, "both"), (70, 40, "answer"), (9, 16, "nothing"), (1, 100, "both")]


def a_norm(kind: str, width: int, device: torch.device | str = "cpu") -> nn.Module:
    norm = {"layer": nn.LayerNorm, "scale": ScaleNorm, "none": nn.Identity}[kind](width)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1.0, 0.5)
    return norm.to(device)


def some_rows(rows, width, given, device="cpu"):
    torch.manual_seed(0)
    x = torch.randn(rows, width, device=device, requires_grad=True)
    y = torch.randn(rows, width, device=device, requires_grad=True) if given != "nothing" else None
    bias = torch.randn(width, device=device, requires_grad=True) if given == "both" else None
    return x, y, bias


@pytest.mark.parametrize(("rows", "width", "given"), CASES)
@pytest.mark.parametrize("kind", ["layer", "scale", "none"])
def test_plain_join_is_addition_and_norm(rows, width, given, kind):
    x, y, bias = some_rows(rows, width, given)
    norm = a_norm(kind, width)
    z, h = join_norm(x, y, bias, norm, 0.0, None, torch.float32)
    expected = x if y is None else x + y + (0.0 if bias is None else bias)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(h, norm(expected))


def test_seeded_dropout_meets_its_rate_and_depends_on_the_seed():
    x = torch.ones(200, 500)
    a, b = (seeded_dropout(x, 0.3, torch.tensor([seed])) for seed in (1, 2))
    for dropped in (a, b):
        assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
        assert (dropped == 0).double().mean().item() == pytest.approx(0.3, abs=0.005)
    assert ((a == 0) == (b == 0)).double().mean().item() == pytest.approx(0.3**2 + 0.7**2, abs=0.01)
    assert seeded_dropout(x, 0.3, None) is x


@pytest.mark.skipif(INTERPRETED, reason="about machines without a GPU")
def test_a_cpu_takes_the_plain_way():
    assert not can_fuse_residual(torch.zeros(2, 8), nn.LayerNorm(8))


def gradients(outputs, inputs, seed=5):
    torch.manual_seed(seed)
    ups = [torch.randn_like(out) for out in outputs]
    return torch.autograd.grad(outputs, inputs, ups, allow_unused=True)


@anywhere
@pytest.mark.parametrize(("rows", "width", "given"), CASES)
@pytest.mark.parametrize("kind", ["layer", "scale", "none"])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("used", ["both", "norm"])
def test_the_join_kernel_is_the_plain_function(monkeypatch, rows, width, given, kind, p, used):
    from qknorm.nn import residual_ops

    x, y, bias = some_rows(rows, width, given, DEVICE)
    norm = a_norm(kind, width, DEVICE)
    seed = torch.tensor([12345], device=DEVICE) if p else None
    weight, shift = getattr(norm, "scale" if kind == "scale" else "weight", None), getattr(norm, "bias", None)
    eps = getattr(norm, "eps", 0.0)
    z, h, *_ = residual_ops.fused_join_norm(x, y, bias, weight, shift, seed, p, eps, torch.float32)
    z = x if y is None else z
    plain_z, plain_h = plain_join_norm(x, y, bias, norm, p, seed, torch.float32)
    torch.testing.assert_close(z, plain_z)
    torch.testing.assert_close(h, plain_h, rtol=1e-5, atol=1e-5)
    inputs = [t for t in (x, y, bias, *norm.parameters()) if t is not None]
    outputs = ((h, z), (plain_h, plain_z)) if used == "both" and y is not None else ((h,), (plain_h,))
    for a, b in zip(*(gradients(outs, inputs) for outs in outputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@anywhere
@pytest.mark.parametrize(("rows", "width", "has_bias"), [(70, 300, True), (5, 7, False), (64, 256, True)])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_relu_kernel_is_the_plain_function(rows, width, has_bias, p):
    from qknorm.nn.residual_ops import fused_relu_dropout

    u, _, bias = some_rows(rows, width, "both" if has_bias else "nothing", DEVICE)
    seed = torch.tensor([2**31 - 1], device=DEVICE) if p else None
    v = fused_relu_dropout(u, bias, seed, p)
    plain = plain_relu_dropout(u, bias, p, seed)
    torch.testing.assert_close(v, plain)
    inputs = [u] if bias is None else [u, bias]
    for a, b in zip(gradients([v], inputs), gradients([plain], inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["layer", "scale", "none"])
def test_bfloat16_answers_at_the_size_of_a_model(kind):
    x = torch.randn(4096, 512, device="cuda", requires_grad=True)
    y = torch.randn(4096, 512, device="cuda").bfloat16().requires_grad_()
    bias = torch.randn(512, device="cuda", requires_grad=True)
    norm, seed = a_norm(kind, 512, "cuda"), torch.tensor([77], device="cuda")
    inputs = [x, y, bias, *norm.parameters()]
    ours = join_norm(x, y, bias, norm, 0.3, seed, torch.bfloat16)
    plain = plain_join_norm(x, y, bias, norm, 0.3, seed, torch.bfloat16)
    torch.testing.assert_close(ours[0], plain[0])
    torch.testing.assert_close(ours[1], plain[1], rtol=2**-7, atol=1e-2)
    for a, b in zip(gradients(ours, inputs), gradients(plain, inputs), strict=True):
        assert (a.float() - b.float()).norm() < 1e-2 * b.float().norm()
    u = torch.randn(4096, 2048, device="cuda").bfloat16().requires_grad_()
    wide = torch.randn(2048, device="cuda", requires_grad=True)
    ours, plain = relu_dropout(u, wide, 0.3, seed), plain_relu_dropout(u, wide, 0.3, seed)
    torch.testing.assert_close(ours, plain, rtol=2**-7, atol=1e-2)
    for a, b in zip(gradients([ours], [u, wide]), gradients([plain], [u, wide]), strict=True):
        assert (a.float() - b.float()).norm() < 1e-2 * b.float().norm()


def test_relu_of_a_cpu_is_pytorchs():
    u, bias = torch.randn(9, 5), torch.randn(5)
    torch.testing.assert_close(relu_dropout(u, bias, 0.3, None), F.relu(u + bias))
