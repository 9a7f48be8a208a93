"""The kernel that turns queries and keys is the plain function: values, gradients, the bias's, twice over."""

import pytest
import torch

from qknorm.nn import MultiheadAttention, Packing, RotaryPositions
from qknorm.nn import turning as turning_module
from qknorm.nn.aside import Aside
from qknorm.nn.positions import turn
from qknorm.nn.triton_support import HAS_TRITON
from qknorm.nn.turning import plain_turned, turned
from support.compare import error
from support.triton import DEVICE, INTERPRETED, anywhere

if HAS_TRITON:
    from qknorm.nn.turn_kernels import fused_turned

DTYPES = [torch.float32, torch.float16, *([] if INTERPRETED else [torch.bfloat16])]
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def drawn(rows=70, heads=2, width=16, dtype=torch.float32, device="cpu"):
    rng = torch.Generator().manual_seed(rows + width)
    qkv = torch.randn(rows, 3 * heads, width, generator=rng).to(device, dtype).requires_grad_()
    bias = torch.randn(3 * heads * width, generator=rng).to(device).requires_grad_()
    positions = torch.randint(0, 500, (rows,), generator=rng).to(device)
    return qkv, RotaryPositions(width, device=device).at(positions, 500), bias


def test_queries_and_keys_turn_and_values_stay():
    qkv, turns, _ = drawn()
    out = plain_turned(qkv, turns)
    q, k, v = qkv.chunk(3, dim=1)
    rows = turns.unsqueeze(1)
    assert torch.equal(out, torch.cat([turn(q, rows), turn(k, rows), v], dim=1))
    assert torch.equal(turned(qkv, turns), out)


def test_the_bias_has_the_gradient_of_what_it_was_added_to():
    qkv, turns, bias = drawn()
    direction = torch.randn_like(qkv)
    out = turned(qkv, turns, bias)
    assert torch.equal(out, turned(qkv, turns)), "it changes nothing else"
    found = torch.autograd.grad((out * direction).sum(), [qkv, bias])
    whole = (qkv.detach() - bias.detach().view(6, 16) + bias.view(6, 16)).requires_grad_()
    expected = torch.autograd.grad((plain_turned(whole, turns) * direction).sum(), [whole, bias])
    assert error(found[0], expected[0]) < 1e-6 and error(found[1], expected[1]) < 1e-5


@anywhere
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "heads", "width"), [(70, 2, 16), (1, 1, 2), (33, 3, 24), (64, 2, 64), (0, 1, 8)]
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_kernel_is_the_plain_function(dtype, rows, heads, width, with_bias):
    qkv, turns, bias = drawn(rows, heads, width, dtype, DEVICE)
    bias = bias if with_bias else None
    given = [qkv] if bias is None else [qkv, bias]
    direction = torch.randn(qkv.shape, generator=torch.Generator().manual_seed(1)).to(qkv)
    out = fused_turned(qkv, turns, bias)
    expected = plain_turned(qkv.double(), turns, bias)
    assert out.dtype == dtype
    if not rows:
        assert out.shape == qkv.shape
        return
    assert error(out, expected) < CLOSE[dtype]
    assert torch.equal(out[:, 2 * heads :], qkv[:, 2 * heads :])
    grads = torch.autograd.grad(out, given, direction)
    wide = torch.autograd.grad(expected, given, direction.double())
    for a, b in zip(grads, wide, strict=True):
        assert a.dtype == b.dtype and error(a, b) < 3 * CLOSE[dtype]


@anywhere
def test_gradients_of_the_kernel_can_be_differentiated():
    qkv, turns, bias = drawn(9, 1, 4, device=DEVICE)

    def second(function):
        gradients = torch.autograd.grad(function().pow(3).sum(), [qkv, bias], create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), qkv)[0]

    fused = second(lambda: fused_turned(qkv, turns, bias))
    assert error(fused, second(lambda: plain_turned(qkv, turns, bias))) < 1e-5


@anywhere
def test_what_is_not_contiguous_and_what_has_nan_in_unused_room():
    qkv, turns, _ = drawn(40, 2, 8, device=DEVICE)
    apart = qkv.detach().transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(fused_turned(apart, turns), fused_turned(qkv, turns))
    apart[30:] = float("nan")
    assert torch.equal(fused_turned(apart, turns)[:30], fused_turned(qkv, turns)[:30])


@anywhere
def test_the_bias_may_be_found_aside():
    qkv, turns, bias = drawn(device=DEVICE)
    expected = torch.autograd.grad(fused_turned(qkv, turns, bias).square().sum(), [qkv, bias])
    with Aside(DEVICE).used():
        found = torch.autograd.grad(fused_turned(qkv, turns, bias).square().sum(), [qkv, bias])
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@anywhere
@pytest.mark.skipif(INTERPRETED, reason="the interpreter's tensors hold no fake ones")
def test_the_operation_is_well_formed():
    qkv, turns, bias = drawn(device=DEVICE)
    torch.library.opcheck(fused_turned, (qkv, turns, bias))
    torch.library.opcheck(fused_turned, (qkv, turns, None, True))


@anywhere
@pytest.mark.parametrize("kind", ["self", "causal", "cross", "keys elsewhere"])
@pytest.mark.parametrize("norm", [None, "l2"])
def test_a_module_with_the_kernels_is_the_module_without(monkeypatch, kind, norm):
    from qknorm.nn import span_attention

    torch.manual_seed(0)
    made = MultiheadAttention(32, 2, qk_norm=norm, rotary=RotaryPositions(16)).to(DEVICE)
    x, memory = (torch.randn(n, 32, device=DEVICE, requires_grad=True) for n in (12, 9))
    packing, key_packing = (Packing.of(n, device=DEVICE) for n in ([4, 1, 5], [3, 3, 2]))
    arguments = dict(query=x, packing=packing, is_causal=kind == "causal", need_weights=False)
    if kind == "cross":
        arguments |= dict(key=memory, key_packing=key_packing)
    if kind == "keys elsewhere":
        arguments |= dict(key_turns=made.rotary(12, 3))
    results, called = [], []
    kernel = turning_module.fused_turned
    monkeypatch.setattr(turning_module, "fused_turned", lambda *a: (called.append(1), kernel(*a))[1])
    for on in (False, True):
        for module in (turning_module, span_attention):
            monkeypatch.setattr(module, "triton_takes", lambda x, on=on: on)
        out = made(**arguments)[0][:10]
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *made.parameters()])])
    for a, b in zip(*results, strict=True):
        assert error(b, a) < 1e-5
    assert bool(called) == (kind in ("self", "causal")), "other keys go the plain way"
