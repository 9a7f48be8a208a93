"""The module against NumPy, against torch.nn.MultiheadAttention, and its corners."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qknorm.nn import MultiheadAttention, RotaryPositions, initial_scale, l2_normalize
from support.compare import error
from support.numpy_attention import multihead

NORMS = [None, "l2", "rms", "layer", "rms_across_heads"]
E, H, B, T, S = 32, 4, 2, 5, 7


def wide(x):
    return x.detach().double().numpy()


def module(norm="l2", *, dtype=torch.float32, randomise=True, **options):
    torch.manual_seed(0)
    made = MultiheadAttention(E, H, batch_first=True, dtype=dtype, qk_norm=norm, **options)
    if randomise:  # biases and norm weights away from 0 and 1, so that forgetting one shows
        with torch.no_grad():
            for name, p in made.named_parameters():
                if p.dim() == 1 and name != "qk_scale":
                    p.add_(torch.randn(p.shape).to(p) * 0.3)
    return made


def inputs(self_attention, dtype=torch.float32, batch=B):
    rng = torch.Generator().manual_seed(7)
    query = torch.randn(batch, T, E, generator=rng).to(dtype).requires_grad_()
    if self_attention:
        return query, query, query
    memory = torch.randn(batch, S, E, generator=rng).to(dtype).requires_grad_()
    return query, memory, memory


def mask_cases(T, S):
    """name → (arguments, additive bias (B, H, T, S) in NumPy)."""
    rng = np.random.default_rng(5)
    padding = np.zeros((B, S), dtype=bool)
    padding[1, S // 2 :] = True
    causal = np.triu(np.ones((T, S), dtype=bool), 1)
    arbitrary = rng.random((B * H, T, S)) > 0.6
    arbitrary[..., 0] = False
    floating = rng.normal(size=(T, S)).astype(np.float32)
    floating_padding = rng.normal(size=(B, S)).astype(np.float32)

    def closed(x):
        return np.where(x, -np.inf, 0.0)

    t = torch.from_numpy
    pad = closed(padding)[:, None, None, :]
    return {
        "none": ({}, np.zeros((T, S))),
        "padding": ({"key_padding_mask": t(padding)}, pad),
        "causal": ({"is_causal": True}, closed(causal)),
        "causal mask and hint": ({"is_causal": True, "attn_mask": t(causal)}, closed(causal)),
        "causal, padding": ({"is_causal": True, "key_padding_mask": t(padding)}, closed(causal) + pad),
        "all three": (
            {"is_causal": True, "attn_mask": t(causal), "key_padding_mask": t(padding)},
            closed(causal) + pad,
        ),
        "boolean 2-D": ({"attn_mask": t(arbitrary[0])}, closed(arbitrary[0])),
        "boolean 3-D": ({"attn_mask": t(arbitrary)}, closed(arbitrary).reshape(B, H, T, S)),
        "floating": ({"attn_mask": t(floating)}, floating.astype(np.float64)),
        "floating padding": (
            {"key_padding_mask": t(floating_padding)},
            floating_padding[:, None, None, :].astype(np.float64),
        ),
        "both floating": (
            {"attn_mask": t(floating), "key_padding_mask": t(floating_padding)},
            floating[None, None] + floating_padding[:, None, None, :].astype(np.float64),
        ),
        "floating, boolean padding": (
            {"attn_mask": t(floating), "key_padding_mask": t(padding)},
            floating + pad,
        ),
        "boolean, floating padding": (
            {"attn_mask": t(arbitrary), "key_padding_mask": t(floating_padding)},
            closed(arbitrary).reshape(B, H, T, S) + floating_padding[:, None, None, :],
        ),
    }


def numpy_twin(made, query, key, value, bias):
    weights = {name: wide(p) for name, p in made.state_dict(keep_vars=True).items()}
    if "in_proj_weight" in weights:
        for name, part in zip("qkv", np.split(weights.pop("in_proj_weight"), 3), strict=True):
            weights[f"{name}_proj_weight"] = part
    g = E**-0.5 * H**0.5 if made.qk_scale is None else wide(made.qk_scale).reshape(-1, 1, 1)
    rotary = made.rotary is not None
    return multihead((wide(query), wide(key), wide(value)), weights, H, made.qk_norm, g, bias, rotary)


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("per", ["layer", "head"])
@pytest.mark.parametrize("self_attention", [True, False], ids=["self", "cross"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rotary", [False, True], ids=["", "rotary"])
def test_matches_numpy_outputs_and_gradients(rotary, norm, self_attention, per, need_weights):
    cases = mask_cases(T, T if self_attention else S)
    options = {} if norm is None else {"qk_scale_learnable": True}
    made = module(norm, qk_scale_per=per, rotary=RotaryPositions(E // H) if rotary else None, **options)
    if made.qk_scale is not None and per == "head":
        with torch.no_grad():
            made.qk_scale.mul_(torch.tensor([1.0, 0.5, 0.8, 1.2]))
    for name, (arguments, bias) in cases.items():
        query, key, value = inputs(self_attention)
        made.zero_grad()
        out, weights = made(
            query, key, value, need_weights=need_weights, average_attn_weights=False, **arguments
        )
        dout = l2_normalize(torch.randn(out.shape, generator=torch.Generator().manual_seed(3)))
        out.backward(dout)

        expected, expected_weights, backward = numpy_twin(made, query, key, value, bias)
        grads = backward(wide(dout))
        assert error(out, expected) < 1e-6, name
        if need_weights:
            assert error(weights, np.broadcast_to(expected_weights, weights.shape)) < 1e-6, name
        else:
            assert weights is None
        dq, dk, dv = grads["q"], grads["k"], grads["v"]
        if self_attention:
            assert error(query.grad, dq + dk + dv) < 1e-6, name
        else:
            assert error(query.grad, dq) < 1e-6, name
            assert error(key.grad, dk + dv) < 1e-6, name
        rows = B * T  # gradients of parameters, which all rows add to, as those of a mean over rows
        stacked = np.concatenate([grads[f"{n}_proj_weight"] for n in "qkv"])
        assert error(made.in_proj_weight.grad / rows, stacked / rows) < 1e-6, name
        assert error(made.in_proj_bias.grad / rows, grads["in_proj_bias"] / rows) < 1e-6, name
        assert error(made.out_proj.weight.grad / rows, grads["out_proj.weight"] / rows) < 1e-6, name
        if norm is not None:
            dg = grads["qk_scale"].sum((0, 2, 3)) if per == "head" else grads["qk_scale"].sum()
            assert error(made.qk_scale.grad.squeeze() / rows, dg / rows) < 1e-6, name


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_gradcheck_of_the_whole_module(norm, need_weights):
    made = module(norm, dtype=torch.float64, v_norm=norm == "l2")
    names = [name for name, _ in made.named_parameters()]
    memory = torch.randn(1, 3, E, dtype=torch.float64)
    padding = torch.tensor([[False, False, True]])

    def function(query, *parameters):
        arguments = dict(key_padding_mask=padding, need_weights=need_weights)
        return torch.func.functional_call(
            made, dict(zip(names, parameters, strict=True)), (query, memory, memory), arguments
        )[0]

    query = torch.randn(1, 2, E, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (query, *made.parameters()), fast_mode=True)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 6, "vdim": 10}], ids=["one matrix", "three"])
@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_without_norm_it_is_torchs_module(batch_first, bias, widths, extra):
    options = dict(bias=bias, batch_first=batch_first, **widths, **extra)
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(E, H, **options)
    torch.manual_seed(0)
    ours = MultiheadAttention(E, H, **options)
    state, own = theirs.state_dict(), ours.state_dict()
    assert list(state) == list(own)
    assert all(torch.equal(state[name], own[name]) for name in state), "same seed, same weights"
    ours.load_state_dict(state)
    theirs.load_state_dict(ours.state_dict())

    query = torch.randn(B, T, E)
    key, value = torch.randn(B, S, widths.get("kdim", E)), torch.randn(B, S, widths.get("vdim", E))
    if not batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    for name, (arguments, _) in mask_cases(T, S).items():
        if "hint" not in name and "is_causal" in arguments and "attn_mask" not in arguments:
            continue  # torch's needs a mask beside is_causal
        for average in (True, False):
            if "floating" in name and "boolean" in name:
                continue  # torch's warns about mixed masks and converts one
            a, wa = ours(query, key, value, average_attn_weights=average, **arguments)
            b, wb = theirs(query, key, value, average_attn_weights=average, **arguments)
            assert a.shape == b.shape and error(a, b) < 1e-6, name
            assert wa.shape == wb.shape and error(wa, wb) < 1e-6, name
            fused, none = ours(query, key, value, need_weights=False, **arguments)
            assert none is None and error(fused, b) < 1e-6, name


def test_unbatched_input_as_torch_takes_it():
    theirs = nn.MultiheadAttention(E, H)
    ours = MultiheadAttention(E, H)
    ours.load_state_dict(theirs.state_dict())
    query, key = torch.randn(T, E), torch.randn(S, E)
    padding = torch.tensor([False] * 5 + [True] * 2)
    mask = torch.rand(H, T, S) > 0.7
    mask[..., 0] = False
    a, wa = ours(query, key, key, padding, attn_mask=mask)
    b, wb = theirs(query, key, key, padding, attn_mask=mask)
    assert a.shape == b.shape and error(a, b) < 1e-6
    assert wa.shape == wb.shape and error(wa, wb) < 1e-6


def test_dropout_in_training_draws_as_torch_does():
    theirs = nn.MultiheadAttention(E, H, dropout=0.4, batch_first=True)
    ours = MultiheadAttention(E, H, dropout=0.4, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, T, E)
    torch.manual_seed(3)
    a, wa = ours(x, x, x)
    torch.manual_seed(3)
    b, wb = theirs(x, x, x)
    assert error(a, b) < 1e-6 and error(wa, wb) < 1e-6
    assert (wa == 0).any() or error(wa, ours.eval()(x, x, x)[1]) > 1e-2


def test_key_and_value_default_to_what_came_before():
    made = module().eval()
    query, memory, _ = inputs(False)
    assert torch.equal(made(query)[0], made(query, query, query)[0])
    assert torch.equal(made(query, memory)[0], made(query, memory, memory)[0])


def test_one_product_or_three_make_no_difference():
    made = module().eval()
    x = torch.randn(B, T, E)
    shared = made(x, x, x)[0]
    assert error(made(x, x.clone(), x.clone())[0], shared) < 1e-6
    copy = x.clone()
    assert error(made(x, copy, copy)[0], shared) < 1e-6


@pytest.mark.parametrize("norm", NORMS[1:])
@pytest.mark.parametrize("learnable", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_changed_scale_changes_the_output_and_gets_its_gradient(norm, learnable, need_weights):
    made = module(norm, qk_scale_learnable=learnable)
    query, key, value = inputs(False)
    before = made(query, key, value, need_weights=need_weights)[0]
    assert isinstance(made.qk_scale, nn.Parameter) == learnable
    assert "qk_scale" in made.state_dict()
    if learnable:
        before.square().sum().backward()
        assert made.qk_scale.grad.abs().item() > 0
    with torch.no_grad():
        made.qk_scale.mul_(3)
    assert error(made(query, key, value, need_weights=need_weights)[0], before) > 1e-3


@pytest.mark.parametrize(
    ("options", "start"),
    [
        (dict(norm="l2"), initial_scale(64)),
        (dict(norm="l2", length=72), initial_scale(72)),
        (dict(norm="l2", qk_scale_init=1.5), 1.5),
        (dict(norm="rms"), (E // H) ** -0.5),
        (dict(norm="layer", length=72), initial_scale(72) / (E // H)),
        (dict(norm="rms_across_heads", qk_scale_init=2), 2.0),
    ],
)
def test_where_the_scale_starts(options, start):
    made = module(**options)
    assert made.qk_scale.tolist() == pytest.approx([start])
    with torch.no_grad():
        made.qk_scale.zero_()
    made.reset_parameters()
    assert made.qk_scale.tolist() == pytest.approx([start])


def test_defaults_learn_g_with_l2_alone():
    learned = {norm: isinstance(module(norm).qk_scale, nn.Parameter) for norm in NORMS[1:]}
    assert learned == {"l2": True, "rms": False, "layer": False, "rms_across_heads": False}
    assert module(None).qk_scale is None and "qk_scale" not in module(None).state_dict()
    assert module(qk_scale_per="head").qk_scale.shape == (H,)


def test_v_norm_normalises_the_values():
    made = module(v_norm=True).eval()
    with torch.no_grad():
        made.in_proj_weight[2 * E :] *= 5
        made.in_proj_bias[2 * E :] *= 5
    scaled = made(*inputs(True))[0]
    with torch.no_grad():
        made.in_proj_weight[2 * E :] /= 5
        made.in_proj_bias[2 * E :] /= 5
    assert error(made(*inputs(True))[0], scaled) < 1e-6
    assert error(module().eval()(*inputs(True))[0], scaled) > 1e-3


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    T=st.integers(1, 6),
    S=st.integers(1, 6),
    heads=st.sampled_from([1, 2, 4]),
    norm=st.sampled_from(NORMS),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    blind=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_low_precision_padding_and_blind_rows_stay_finite(batch, T, S, heads, norm, dtype, blind, seed):
    torch.manual_seed(seed)
    made = MultiheadAttention(8, heads, batch_first=True, dtype=dtype, qk_norm=norm)
    query = torch.randn(batch, T, 8).to(dtype)
    query[:, -1] = 0
    memory = torch.randn(batch, S, 8).to(dtype)
    memory[0] = 0
    query.requires_grad_(), memory.requires_grad_()
    padding = torch.rand(batch, S) > 0.6
    padding[0] = blind
    for need_weights in (True, False):
        out, _ = made(query, memory, memory, padding, need_weights=need_weights)
        grads = torch.autograd.grad(out.float().square().mean(), [query, memory, *made.parameters()])
        assert out.dtype == dtype and out.isfinite().all()
        assert all(x.isfinite().all() for x in grads)


def test_autocast_computes_in_bfloat16():
    made = module()
    query, key, value = inputs(False)
    full = made(query, key, value)[0]
    with torch.autocast("cpu", torch.bfloat16):
        out = made(query, key, value, need_weights=False)[0]
    assert out.dtype == torch.bfloat16 and error(out, full) < 3e-2
    out.float().sum().backward()
    assert made.qk_scale.grad.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(embed_dim=10, num_heads=4), "num_heads must divide embed_dim: 10 is not a multiple of 4"),
        (dict(embed_dim=0, num_heads=4), "must be positive"),
        (
            dict(qk_norm="l3"),
            "qk_norm must be None or one of 'l2', 'rms', 'layer', 'rms_across_heads', not 'l3'",
        ),
        (dict(qk_norm="l2", qk_scale_per="row"), "qk_scale_per must be 'layer' or 'head', not 'row'"),
        (dict(qk_norm="l2", length=1), "length must be .* at least 2"),
        (dict(qk_norm="l2", length=8, qk_scale_init=3.0), "qk_scale_init or length, not both"),
        (dict(qk_norm="l2", qk_scale_init=float("nan")), "qk_scale_init must be a finite number"),
        (dict(length=8), "length would have no effect: qk_norm is None"),
        (dict(qk_scale_init=8.0, qk_scale_learnable=True), "qk_scale_init and qk_scale_learnable would have"),
        (dict(qk_norm="l2", v_norm="l2"), "v_norm must be True or False"),
        (dict(dropout=1.5), "dropout must be at least 0 and below 1"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiheadAttention(**{**dict(embed_dim=E, num_heads=H), **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(query=torch.randn(B, T, E + 1)), "query must have width 32, not 33"),
        (dict(key=torch.randn(B, S, 3), value=torch.randn(B, S, E)), "key must have width 32, not 3"),
        (dict(query=torch.randn(T, E)), "all be 3-D"),
        (dict(query=torch.randn(E)), "all be 3-D"),
        (dict(query=torch.randn(B + 1, T, E)), "one batch size"),
        (dict(key=torch.randn(B, S - 1, E)), "key and value one length"),
        (dict(attn_mask=torch.zeros(T, T)), rf"attn_mask must be \({T}, {S}\) or \({B * H}, {T}, {S}\)"),
        (dict(attn_mask=torch.zeros(B, T, S)), "attn_mask must be"),
        (dict(key_padding_mask=torch.zeros(B, T)), rf"key_padding_mask must be \({B}, {S}\)"),
        (dict(attn_mask=torch.zeros(T, S, dtype=torch.long)), "attn_mask must be boolean or floating"),
    ],
)
def test_wrong_inputs_are_named(arguments, message):
    whole = dict(query=torch.randn(B, T, E), key=torch.randn(B, S, E), value=torch.randn(B, S, E))
    with pytest.raises(ValueError, match=message):
        module()(**{**whole, **arguments})


@pytest.mark.parametrize("extra", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
def test_appended_keys_stay_open_under_every_mask(extra, need_weights):
    """The causal triangle and padding close the sequence's own keys only."""
    made = MultiheadAttention(E, H, batch_first=True, qk_norm="l2", **extra)
    x = torch.randn(B, T, E)
    whole, weights = made(x, x, x, torch.ones(B, T, dtype=torch.bool), is_causal=True)
    assert weights.shape == (B, T, T + 1)
    assert torch.allclose(weights[..., -1], torch.ones(B, T))
    fused, _ = made(x, x, x, torch.ones(B, T, dtype=torch.bool), is_causal=True, need_weights=need_weights)
    assert error(fused, whole) < 1e-6


def test_repr_says_what_is_normalised():
    assert "qk_norm='l2', qk_scale_per='layer'" in repr(module())
    assert "qk_norm=None, dropout" in repr(module(None))


def test_every_combination_constructs():
    for norm, per, learnable, v_norm in itertools.product(
        NORMS[1:], ["layer", "head"], [None, True, False], [True, False]
    ):
        made = module(norm, qk_scale_per=per, qk_scale_learnable=learnable, v_norm=v_norm)
        assert made(*inputs(True), need_weights=False)[0].isfinite().all()
