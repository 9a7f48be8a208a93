"""torch.compile, torch.export, copies, pickles and functional calls of the modules."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from qknorm.nn import (
    FixNormEmbedding,
    MultiheadAttention,
    Packing,
    RotaryPositions,
    ScaleNorm,
    SinusoidalPositions,
    convert,
)
from support.compare import error

E, H = 16, 4
NORMS = [None, "l2", "rms", "layer", "rms_across_heads"]


def made(norm="l2", **options):
    torch.manual_seed(0)
    return MultiheadAttention(E, H, batch_first=True, qk_norm=norm, **options)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def gradients(module, out):
    return torch.autograd.grad(out.square().sum(), list(module.parameters()), allow_unused=True)


def rotary():
    return RotaryPositions(E // H)


@pytest.mark.parametrize("turns", [False, True], ids=["", "rotary"])
@pytest.mark.parametrize("norm", NORMS)
def test_compiled_in_one_graph(norm, turns):
    attention = made(norm, rotary=rotary() if turns else None)
    x, memory = torch.randn(2, 5, E), torch.randn(2, 6, E)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for arguments in (
        dict(query=x, is_causal=True, need_weights=False),
        dict(query=x, key=memory, key_padding_mask=padding, need_weights=False),
        dict(query=x, key=memory, key_padding_mask=padding),
    ):
        out, weights = compiled(**arguments)
        expected, expected_weights = attention(**arguments)
        assert error(out, expected) < 1e-6
        assert (weights is None) == (expected_weights is None)
        for a, b in zip(gradients(attention, out), gradients(attention, expected), strict=True):
            assert error(a, b) < 1e-5


@pytest.mark.parametrize("turns", [False, True], ids=["", "rotary"])
def test_packed_compiled_in_one_graph(turns):
    attention, x = made(rotary=rotary() if turns else None), torch.randn(9, E)
    packing = Packing.of([4, 3], places=4)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    arguments = dict(query=x, is_causal=True, need_weights=False)
    out = compiled(packing=packing, **arguments)[0]
    assert error(out, attention(packing=packing, **arguments)[0]) < 1e-6
    other = Packing.of([2, 2, 3], places=4, max_length=4)  # other sentences, same graph
    with torch.compiler.set_stance("fail_on_recompile"):
        out = compiled(packing=other, **arguments)[0]
    assert error(out, attention(packing=other, **arguments)[0]) < 1e-6


@pytest.mark.slow
def test_compiled_by_inductor():
    attention, x = made(), torch.randn(2, 5, E)
    compiled = torch.compile(attention, fullgraph=True)
    out = compiled(x, is_causal=True, need_weights=False)[0]
    expected = attention(x, is_causal=True, need_weights=False)[0]
    assert error(out, expected) < 1e-6
    for a, b in zip(gradients(attention, out), gradients(attention, expected), strict=True):
        assert error(a, b) < 1e-5


@pytest.mark.parametrize("turns", [False, True], ids=["", "rotary"])
@pytest.mark.parametrize("norm", NORMS)
def test_exported(norm, turns):
    attention = made(norm, rotary=rotary() if turns else None).eval()
    x = torch.randn(2, 5, E)
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        attention,
        (x,),
        dict(need_weights=False, is_causal=True),
        dynamic_shapes=dict(query={0: batch, 1: length}, need_weights=None, is_causal=None),
    )
    longer = torch.randn(3, 9, E)
    out = program.module()(longer, need_weights=False, is_causal=True)[0]
    assert error(out, attention(longer, need_weights=False, is_causal=True)[0]) < 1e-6
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    assert error(loaded(longer, need_weights=False, is_causal=True)[0], out) < 1e-6


def modules():
    return {
        "l2": made(qk_scale_per="head", v_norm=True),
        "plain": made(None),
        "rms": made("rms"),
        "scale norm": ScaleNorm(E),
        "fixnorm": FixNormEmbedding(7, E),
        "positions": SinusoidalPositions(E),
        "rotary": rotary(),
        "turning": made(rotary=rotary()),
        "converted": convert(nn.TransformerEncoderLayer(E, H, 32, batch_first=True), log=None),
    }


def run(module):
    torch.manual_seed(1)
    if isinstance(module, FixNormEmbedding):
        return module(torch.arange(7))
    fixed = isinstance(module, SinusoidalPositions | RotaryPositions)
    out = module(5) if fixed else module.eval()(torch.randn(2, 5, E))
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("name", modules())
def test_copies_and_pickles_are_the_same_function(name):
    module = modules()[name]
    expected = run(module)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(run(twin), expected)
        for p, q in zip(module.parameters(), twin.parameters(), strict=True):
            assert p is not q and torch.equal(p, q)


def test_functional_call_uses_the_given_scale():
    attention, x = made(), torch.randn(2, 5, E)
    given = {"qk_scale": torch.tensor([1.5])}
    out = torch.func.functional_call(attention, given, (x,), dict(need_weights=False))[0]
    with torch.no_grad():
        attention.qk_scale.fill_(1.5)
    assert error(out, attention(x, need_weights=False)[0]) < 1e-7


def test_per_sample_gradients_with_vmap():
    attention, x = made(), torch.randn(3, 5, E)
    parameters = dict(attention.named_parameters())

    def loss(parameters, one):
        out = torch.func.functional_call(attention, parameters, (one[None],), dict(need_weights=True))[0]
        return out.square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    whole = torch.func.grad(lambda p: sum(loss(p, one) for one in x))(parameters)
    assert error(each["qk_scale"].sum(0), whole["qk_scale"]) < 1e-5


def test_meta_device_and_dtype():
    attention = made(device="meta", dtype=torch.bfloat16)
    assert {p.device.type for p in attention.parameters()} == {"meta"}
    assert {p.dtype for p in attention.parameters()} == {torch.bfloat16}
    assert attention(torch.empty(2, 5, E, device="meta", dtype=torch.bfloat16))[0].shape == (2, 5, E)
