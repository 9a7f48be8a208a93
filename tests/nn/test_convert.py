"""Converting models that exist: torch's Transformer in training and eval, RMS form, x-transformers."""

import copy

import pytest
import torch
from torch import nn

from qknorm.nn import (
    MultiheadAttention,
    RotaryPositions,
    attention_modules,
    convert,
    from_x_transformers,
    initial_scale,
    qk_norm_attention,
    to_rms,
)
from support.compare import error

E, H = 16, 4


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options.get("norm_first", False))


def by_hand(attn, x, padding=None):
    """The paper's equations from the module's weights, through the functional form."""
    q, k, v = nn.functional.linear(x, attn.in_proj_weight, attn.in_proj_bias).chunk(3, dim=-1)
    q, k, v = (t.unflatten(-1, (H, E // H)).transpose(1, 2) for t in (q, k, v))
    mask = None if padding is None else ~padding[:, None, None, :]
    out = qk_norm_attention(q, k, v, attn.qk_scale, mask)
    return attn.out_proj(out.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_the_fast_path_does_not_bypass_the_norm(norm_first, padded):
    """Eval without gradients is where torch.nn.TransformerEncoderLayer would skip the attention module."""
    model = convert(encoder(norm_first=norm_first), length=20, log=None)
    x = torch.randn(3, 7, E)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    if padded:
        padding[1, 4:] = True
    training = model.train()(x, src_key_padding_mask=padding)
    with torch.inference_mode():
        inference = model.eval()(x, src_key_padding_mask=padding)
    keep = ~padding
    assert error(inference[keep], training[keep]) < 2e-6

    y = x
    for layer in model.layers:
        attended = by_hand(layer.self_attn, layer.norm1(y) if norm_first else y, padding)
        y = y + attended if norm_first else layer.norm1(y + attended)
        y = y + layer._ff_block(layer.norm2(y)) if norm_first else layer.norm2(y + layer._ff_block(y))
    assert error(inference[keep], y[keep]) < 2e-6
    plain = encoder(norm_first=norm_first).eval()(x, src_key_padding_mask=padding)
    assert error(inference[keep], plain[keep]) > 1e-2


def test_a_single_layer_in_eval():
    layer = convert(nn.TransformerEncoderLayer(E, H, 32, batch_first=True), log=None).eval()
    x = torch.randn(2, 5, E)
    with torch.no_grad():
        before = layer(x)
        layer.self_attn.qk_scale.mul_(3)
        assert error(layer(x), before) > 1e-3


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_whole_transformer(batch_first):
    torch.manual_seed(0)
    model = nn.Transformer(E, H, 2, 2, 32, dropout=0.0, batch_first=batch_first)
    plain = copy.deepcopy(model)
    said = []
    convert(model, qk_norm="l2", length=30, log=said.append)
    found = attention_modules(model)
    assert len(found) == 6 and not any(isinstance(m, nn.MultiheadAttention) for m in model.modules())
    assert "6 attention module(s)" in said[0] and "decoder.layers.1.multihead_attn" in said[0]
    for attention in found.values():
        assert attention.qk_scale.item() == pytest.approx(initial_scale(30))
    for name, p in plain.named_parameters():
        assert torch.equal(model.get_parameter(name), p), name
    source, target = torch.randn(3, 7, E), torch.randn(3, 5, E)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    a = model.train()(source, target, tgt_mask=mask, tgt_is_causal=True)
    with torch.no_grad():
        b = model.eval()(source, target, tgt_mask=mask, tgt_is_causal=True)
    assert error(a, b) < 2e-6
    assert error(b, plain.eval()(source, target, tgt_mask=mask, tgt_is_causal=True)) > 1e-2


@pytest.mark.parametrize("norm", [None, "l2", "rms", "layer", "rms_across_heads"])
def test_none_keeps_the_function_and_the_others_change_it(norm):
    model = encoder()
    x = torch.randn(2, 5, E)
    before = model.eval()(x)
    convert(model, qk_norm=norm, log=None)
    with torch.no_grad():
        change = error(model(x), before)
    assert change < 2e-6 if norm is None else change > 1e-3


def test_parameters_stay_the_same_objects():
    model = encoder().double()
    model.layers[0].self_attn.requires_grad_(False)
    before = dict(model.named_parameters())
    assert convert(model, qk_scale_per="head", qk_scale_init=3.0, log=None) is model
    after = dict(model.named_parameters())
    assert all(after[name] is p for name, p in before.items())
    assert set(after) - set(before) == {f"layers.{i}.self_attn.qk_scale" for i in range(2)}
    scale = model.layers[0].self_attn.qk_scale
    assert scale.dtype == torch.float64 and scale.shape == (H,) and scale.tolist() == [3.0] * H


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_new_norm_weights_start_at_one(norm):
    attention = convert(nn.MultiheadAttention(E, H), qk_norm=norm, log=None)
    assert (attention.q_norm.weight == 1).all() and (attention.k_norm.weight == 1).all()
    assert attention.qk_scale.device.type == "cpu" and attention.qk_scale.item() == pytest.approx(0.5)
    assert attention(torch.randn(3, 2, E))[0].isfinite().all()


@pytest.mark.parametrize(
    "options",
    [{"kdim": 6, "vdim": 10}, {"bias": False}, {"add_bias_kv": True, "add_zero_attn": True}],
    ids=str,
)
def test_every_kind_of_module_is_taken_over(options):
    theirs = nn.MultiheadAttention(E, H, dropout=0.2, batch_first=True, **options).eval()
    ours = convert(theirs, qk_norm=None, log=None)
    assert isinstance(ours, MultiheadAttention) and ours.dropout == 0.2 and not ours.training
    q, k, v = torch.randn(2, 3, E), torch.randn(2, 5, theirs.kdim), torch.randn(2, 5, theirs.vdim)
    assert error(ours(q, k, v)[0], theirs(q, k, v)[0]) < 1e-6


def test_a_shared_module_stays_shared():
    shared = nn.MultiheadAttention(E, H)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    said = []
    convert(model, log=said.append)
    assert model["a"] is model["b"][0] and isinstance(model["a"], MultiheadAttention)
    assert "a, b.0" in said[0]


def test_subclasses_are_left_alone_and_named(capsys):
    class Special(nn.MultiheadAttention):
        pass

    model = nn.ModuleDict({"odd": Special(E, H)})
    convert(model)
    printed = capsys.readouterr().out
    assert "nothing replaced" in printed and "odd (Special)" in printed
    assert type(model["odd"]) is Special


def test_convert_refuses_as_the_module_does():
    with pytest.raises(ValueError, match="length must be"):
        convert(encoder(), length=1)
    model = encoder()
    with pytest.raises(ValueError, match="qk_norm must be"):
        convert(model, qk_norm="l7")
    assert isinstance(model.layers[0].self_attn, nn.MultiheadAttention)


@pytest.mark.parametrize("learnable", [True, False])
def test_to_rms_is_the_same_function(learnable):
    torch.manual_seed(0)
    attention = MultiheadAttention(
        E, H, batch_first=True, qk_norm="l2", qk_scale_init=7.0, qk_scale_learnable=learnable
    )
    x, memory = torch.randn(2, 5, E), torch.randn(2, 6, E)
    x[0, 0] = 0
    before = [attention(x, memory, memory, need_weights=w)[0] for w in (True, False)]
    assert to_rms(attention) is attention
    assert attention.qk_norm == "rms" and isinstance(attention.q_norm, nn.RMSNorm)
    for w, expected in zip((True, False), before, strict=True):
        assert error(attention(x, memory, memory, need_weights=w)[0], expected) < 2e-6
    # as a Qwen3-style layer has it: weighted RMS norms per head, then 1/√D
    q, k, v = (
        nn.functional.linear(t, w, b).unflatten(-1, (H, E // H)).transpose(1, 2)
        for t, w, b in zip(
            (x, memory, memory),
            attention.in_proj_weight.chunk(3),
            attention.in_proj_bias.chunk(3),
            strict=True,
        )
    )
    out = nn.functional.scaled_dot_product_attention(attention.q_norm(q), attention.k_norm(k), v)
    assert error(attention.out_proj(out.transpose(1, 2).flatten(-2)), before[0]) < 2e-6
    assert {n for n, p in attention.named_parameters() if p.requires_grad and "norm" in n} == (
        {"q_norm.weight", "k_norm.weight"} if learnable else set()
    )
    again = MultiheadAttention(E, H, batch_first=True, qk_norm="rms")
    again.load_state_dict(attention.state_dict())
    again.q_norm.eps = again.k_norm.eps = 1e-12
    assert error(again(x, memory, memory)[0], before[0]) < 2e-6


def test_to_rms_of_heads_that_turn():
    torch.manual_seed(0)
    rotary = RotaryPositions(E // H)
    attention = MultiheadAttention(E, H, batch_first=True, qk_norm="l2", length=20, rotary=rotary)
    x = torch.randn(2, 5, E)
    before = attention(x, is_causal=True, need_weights=False)[0]
    assert to_rms(attention).rotary is rotary
    assert error(attention(x, is_causal=True, need_weights=False)[0], before) < 2e-6


def test_to_rms_of_a_model_and_what_it_refuses():
    model = convert(encoder(), log=None)
    x = torch.randn(2, 5, E)
    before = model(x)
    to_rms(model)
    assert error(model(x), before) < 2e-6
    with pytest.raises(ValueError, match="no qknorm attention with qk_norm='l2'"):
        to_rms(model)
    with pytest.raises(ValueError, match="layers.0.self_attn has one qk_scale per head"):
        to_rms(convert(encoder(), qk_scale_per="head", log=None))


@pytest.fixture
def x_attention():
    pytest.importorskip("x_transformers")
    from x_transformers.x_transformers import Attention

    def make(**options):
        torch.manual_seed(0)
        return Attention(**(dict(dim=E, heads=H, dim_head=E // H, qk_norm=True) | options))

    return make


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("options", [{}, {"qk_norm_scale": 7}, {"causal": True}], ids=str)
def test_x_transformers_parity(x_attention, flash, options):
    theirs = x_attention(flash=flash, **options)
    ours = from_x_transformers(theirs)
    assert not isinstance(ours.qk_scale, nn.Parameter)
    assert ours.qk_scale.item() == options.get("qk_norm_scale", 10)
    x = torch.randn(2, 5, E, requires_grad=True)
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[1, 3:] = False
    expected = theirs(x, mask=keep)
    expected = expected[0] if isinstance(expected, tuple) else expected
    for need_weights in (True, False):
        out, _ = ours(x, x, x, ~keep, is_causal=options.get("causal", False), need_weights=need_weights)
        assert error(out[keep], expected[keep]) < 2e-6
    grads = [torch.autograd.grad(y[keep].square().sum(), x, retain_graph=True)[0] for y in (out, expected)]
    assert error(*grads) < 1e-5


def test_x_transformers_cross_attention_of_another_width(x_attention):
    theirs = x_attention(dim_context=10)
    ours = from_x_transformers(theirs)
    x, context = torch.randn(2, 5, E), torch.randn(2, 7, 10)
    expected = theirs(x, context=context)
    expected = expected[0] if isinstance(expected, tuple) else expected
    assert error(ours(x, context, context)[0], expected) < 2e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qk_norm": False}, "qk_norm=True"),
        ({"qk_norm_dim_scale": True}, "no counterpart here for qk_norm_k_scale, qk_norm_q_scale"),
        ({"qk_norm_groups": 1, "dim_head": 8}, "heads × dim_head = dim"),
        ({"kv_heads": 2}, "as many key heads"),
        ({"gate_values": True}, "no counterpart here for to_v_gate"),
        ({"dim_head": 8, "dim": 32, "qk_norm_groups": 2}, "qk_norm_groups=2"),
    ],
    ids=str,
)
def test_x_transformers_without_a_counterpart(x_attention, options, message):
    with pytest.raises(ValueError, match=message):
        from_x_transformers(x_attention(**options))


def test_not_an_x_transformers_module():
    odd = nn.Linear(2, 2)
    odd.qk_norm = True
    with pytest.raises(ValueError, match="the module has no to_k.weight"):
        from_x_transformers(odd)
