"""Norm layers against their formulas."""

import pytest
import torch
from torch import nn

from qknorm.nn import L2Norm, ScaleNorm, make_norm, make_qk_norm
from support.compare import error


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_scale_norm_is_its_formula(dtype):
    norm = ScaleNorm(16, dtype=dtype)
    x = torch.randn(4, 16, dtype=torch.float64)
    assert norm.scale.item() == 4.0
    expected = 4.0 * x / x.norm(dim=-1, keepdim=True)
    assert error(norm(x.to(dtype)), expected) < 2 * torch.finfo(dtype).eps * 4
    assert norm(x.to(dtype)).dtype == dtype
    assert ScaleNorm(16, scale_init=0.25).scale.item() == 0.25


def test_scale_norm_gradient_and_zero():
    norm = ScaleNorm(4, dtype=torch.float64)
    assert torch.autograd.gradcheck(norm, torch.randn(3, 4, dtype=torch.float64, requires_grad=True))
    x = torch.zeros(1, 4, requires_grad=True, dtype=torch.float64)
    norm(x).sum().backward()
    assert (x.grad == 0).all() and norm.scale.grad.isfinite().all()


@pytest.mark.parametrize(
    ("kind", "cls"),
    [("layer", nn.LayerNorm), ("scale", ScaleNorm), ("rms", nn.RMSNorm), ("none", nn.Identity)],
)
def test_make_norm(kind, cls):
    norm = make_norm(kind, 8)
    assert type(norm) is cls
    assert norm(torch.randn(2, 8)).shape == (2, 8)
    if kind != "none":
        assert make_norm(kind, 8, eps=0.5).eps == 0.5


def test_rms_is_l2_times_root_width():
    x = torch.randn(5, 16)
    assert error(make_norm("rms", 16, eps=0.0)(x), 4 * L2Norm()(x)) < 1e-6


@pytest.mark.parametrize("kind", ["l2", "rms", "layer", "rms_across_heads"])
def test_make_qk_norm(kind):
    norm = make_qk_norm(kind, head_dim=8, num_heads=4)
    width = 32 if kind == "rms_across_heads" else 8
    assert norm(torch.randn(2, width)).shape == (2, width)
    assert sum(p.numel() for p in norm.parameters()) == {"l2": 0, "layer": 16}.get(kind, width)


def test_unknown_names_say_what_is_allowed():
    with pytest.raises(ValueError, match="norm must be one of 'layer', 'scale', 'rms', 'none', not 'batch'"):
        make_norm("batch", 8)
    with pytest.raises(ValueError, match="qk_norm must be None or one of 'l2', .*, not 'batch'"):
        make_qk_norm("batch", 8, 2)


def test_reprs():
    assert repr(L2Norm()) == "L2Norm(eps=1e-12)"
    assert repr(ScaleNorm(8)) == "ScaleNorm(8, eps=1e-05)"
