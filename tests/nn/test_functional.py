"""The functional form against NumPy, fused against explicit, and the corners of both."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.nn import initial_scale, l2_normalize, qk_norm_attention
from support.compare import error
from support.numpy_attention import core

SHAPE = dict(B=2, H=3, T=5, S=7, D=16)


def draw(seed=0, dtype=torch.float32, **sizes):
    s = {**SHAPE, **sizes}
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        x = torch.randn(*shape, generator=rng, dtype=torch.float64)
        length = x.norm(dim=-1, keepdim=True)  # not near 0, where directions are ill-conditioned
        return (x * length.clamp(min=0.5) / length).to(dtype).requires_grad_()

    q = normal(s["B"], s["H"], s["T"], s["D"])
    k, v = (normal(s["B"], s["H"], s["S"], s["D"]) for _ in "kv")
    with torch.no_grad():
        v /= s["D"] ** 0.5  # about unit length, so that errors are relative to the outputs' size
    return q, k, v


def directions(shape):
    """A unit-length direction for each output vector: what its gradient is taken along."""
    return l2_normalize(torch.randn(shape, generator=torch.Generator().manual_seed(3)))


def masks(T, S, B=2, H=3):
    rng = torch.Generator().manual_seed(1)
    padding = torch.ones(B, 1, 1, S, dtype=torch.bool)
    padding[1, ..., S // 2 :] = False
    arbitrary = torch.rand(B, H, T, S, generator=rng) > 0.4
    arbitrary[..., 0] = True
    floating = torch.randn(T, S, generator=rng)
    return {
        "none": None,
        "padding": padding,
        "arbitrary": arbitrary,
        "floating": floating,
        "floating with -inf": torch.where(arbitrary, torch.randn(B, H, T, S, generator=rng), -torch.inf),
    }


def as_bias(mask, is_causal, T, S):
    bias = np.zeros((T, S))
    if mask is not None:
        bias = np.where(mask.numpy(), 0.0, -np.inf) if mask.dtype == torch.bool else mask.double().numpy()
    return bias + (np.where(np.tril(np.ones((T, S))) > 0, 0.0, -np.inf) if is_causal else 0.0)


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", masks(5, 7))
@pytest.mark.parametrize("per_head", [False, True])
def test_matches_numpy_outputs_and_gradients(need_weights, is_causal, mask, per_head):
    q, k, v = draw()
    T, S, H = 5, 7, 3
    g = torch.tensor([12.3, 9.0, 4.0]) if per_head else torch.tensor(12.3)
    g.requires_grad_()
    mask = masks(T, S)[mask]
    result = qk_norm_attention(q, k, v, g, mask, is_causal, need_weights=need_weights)
    out = result[0] if need_weights else result
    dout = directions(out.shape)
    out.backward(dout)

    def wide(x):
        return x.detach().double().numpy()

    g_np = wide(g).reshape(-1, 1, 1)
    ref, weights, backward = core(
        wide(q), wide(k), wide(v), g_np, as_bias(mask, is_causal, T, S), ("l2",), ("l2",)
    )
    dq, dk, dv, dg = backward(wide(dout))
    dg = dg.sum((0, 2, 3)) if per_head else dg.sum()
    assert error(out, ref) < 1e-6
    for actual, expected in ((q.grad, dq), (k.grad, dk), (v.grad, dv), (g.grad, dg)):
        assert error(actual, expected) < 1e-6
    if need_weights:
        assert error(result[1], weights) < 1e-6
        assert result[1].shape == (2, H, T, S)


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_gradcheck(need_weights):
    q, k, v = draw(dtype=torch.float64, T=3, S=4, D=4)
    g = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    mask = masks(3, 4)["arbitrary"]

    def function(q, k, v, g):
        result = qk_norm_attention(q, k, v, g, mask, need_weights=need_weights)
        return result[0] if need_weights else result

    assert torch.autograd.gradcheck(function, (q, k, v, g))


@settings(max_examples=60, deadline=None)
@given(
    B=st.integers(1, 3),
    H=st.integers(1, 4),
    T=st.integers(1, 9),
    S=st.integers(1, 9),
    D=st.sampled_from([2, 4, 16]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    is_causal=st.booleans(),
    masked=st.sampled_from(["none", "bool", "float"]),
    seed=st.integers(0, 2**16),
)
def test_fused_and_explicit_agree_and_stay_finite(B, H, T, S, D, dtype, is_causal, masked, seed):
    q, k, v = draw(seed, dtype, B=B, H=H, T=T, S=S, D=D)
    mask = None
    if masked != "none":
        mask = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(seed)) > 0.5
        if masked == "float":
            mask = torch.where(mask, 0.5, -torch.inf).to(dtype)
    grads = []
    for need_weights in (False, True):
        g = torch.tensor(7.5, requires_grad=True)
        result = qk_norm_attention(q, k, v, g, mask, is_causal, need_weights=need_weights)
        out = result[0] if need_weights else result
        found = torch.autograd.grad(out.float().square().sum(), (q, k, v, g))
        assert all(x.isfinite().all() for x in (out, *found))
        grads.append((out, *found))
    close = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for i, (fused, explicit) in enumerate(zip(*grads, strict=True)):
        assert error(fused, explicit) < close * (10 if i else 1)  # gradients lose a digit


def test_softmax_sees_only_differences():
    expected = torch.tensor([0.99962, 0.00034, 0.00005])
    for logits in ([760.0, 752.0, 750.0], [12.0, 4.0, 2.0]):
        assert torch.allclose(torch.tensor(logits).softmax(0), expected, atol=5e-6)


def test_half_precision_norms_are_computed_in_float32():
    x = torch.full((1, 64), 300.0, dtype=torch.float16)  # ‖x‖² = 5.76e6 is past float16's 65504
    assert torch.equal(l2_normalize(x), torch.full((1, 64), 0.125, dtype=torch.float16))
    q = k = x[None, None]
    out = qk_norm_attention(q, k, torch.ones_like(q), 10.0)
    assert torch.equal(out, torch.ones_like(out))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zero_vectors_give_finite_outputs_and_zero_gradients(dtype):
    q, k, v = draw(dtype=dtype)
    with torch.no_grad():
        q[0, 0, 1] = 0
        k[0, 1, 2] = 0
    out = qk_norm_attention(q, k, v, torch.tensor(12.0))
    out.float().sum().backward()
    assert out.isfinite().all()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
    assert (q.grad[0, 0, 1] == 0).all() and (k.grad[0, 1, 2] == 0).all()


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_rows_that_may_look_nowhere_give_zeros(need_weights, kind):
    q, k, v = draw()
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    mask[1, 0, 2] = False
    if kind == "float":
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    result = qk_norm_attention(q, k, v, 12.0, mask, need_weights=need_weights)
    out = result[0] if need_weights else result
    out.square().sum().backward()
    assert (out[1, :, 2] == 0).all() and (out[1, :, 1] != 0).any()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
    assert (q.grad[1, :, 2] == 0).all()
    if need_weights:
        assert (result[1][1, :, 2] == 0).all()


def test_a_large_negative_float16_mask_cannot_make_nan():
    q, k, v = draw(dtype=torch.float16)
    mask = torch.full((5, 7), -1e9)
    assert qk_norm_attention(q, k, v, 12.0, mask).isfinite().all()


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_the_scale_counts_on_every_path(need_weights):
    q, k, v = draw()
    low, high = (qk_norm_attention(q, k, v, g, need_weights=need_weights) for g in (1.0, 9.0))
    low, high = (low[0], high[0]) if need_weights else (low, high)
    assert error(low, high) > 1e-2


def test_length_of_vectors_does_not_matter():
    q, k, v = draw()
    assert error(qk_norm_attention(q * 1e3, k * 1e-3, v, 9.0), qk_norm_attention(q, k, v, 9.0)) < 1e-6


def test_dropout_drops_and_keeps_the_mean():
    q, k, v = draw(B=1, H=1, T=1, S=4)
    torch.manual_seed(0)
    for need_weights in (False, True):
        results = [
            qk_norm_attention(q, k, v, 2.0, dropout_p=0.5, need_weights=need_weights) for _ in range(800)
        ]
        outs = torch.stack([r[0] if need_weights else r for r in results])
        assert outs.std(0).max() > 0.1
        assert error(outs.mean(0), qk_norm_attention(q, k, v, 2.0)) < 0.15


def test_a_single_position_attends_to_itself():
    q, k, v = draw(T=1, S=1)
    assert error(qk_norm_attention(q, k, v, 12.0, is_causal=True), v) == 0


@pytest.mark.parametrize("length", [2, 72, 79.5, 10**6])
def test_initial_scale(length):
    assert initial_scale(length) == pytest.approx(math.log2(length**2 - length), rel=1e-15)


def test_initial_scale_of_the_paper():
    assert initial_scale(72) == pytest.approx(12.3196, abs=1e-4)
    assert initial_scale(2) == 1.0


@pytest.mark.parametrize("length", [1, 0, -3, 1.9, math.nan, math.inf])
def test_initial_scale_refuses(length):
    with pytest.raises(ValueError, match="length must be .* at least 2"):
        initial_scale(length)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(q=torch.randn(2, 3, 5, 4)), "q and k must have one width, not 4"),
        (dict(v=torch.randn(2, 3, 6, 16)), "k and v must have one length, not 7"),
        (dict(q=torch.randn(8)), "q must be at least 2-D"),
        (dict(scale=torch.ones(4)), r"one value per head \(3\), not shape \(4,\)"),
        (dict(scale=torch.ones(2), q=torch.randn(5, 16)), "no head axis"),
    ],
)
def test_wrong_shapes_are_named(change, message):
    q, k, v = draw()
    with pytest.raises(ValueError, match=message):
        qk_norm_attention(**{**dict(q=q, k=k, v=v, scale=10.0), **change})
