"""The span kernels are the plain function: values, gradients, dropout, compiled, replayed, in a module.

On a CUDA device; those that need no compiler also run in Triton's interpreter, with TRITON_INTERPRET=1
(but without bfloat16, which it cannot multiply).
"""

import pytest
import torch

from qknorm.model import ModelSettings, Transformer
from qknorm.nn import MultiheadAttention, Packing
from qknorm.nn.span_attention import can_fuse_spans, span_attention
from qknorm.nn.spans import find_spans, keep_mask, plain_span_attention
from qknorm.nn.triton_support import HAS_TRITON
from support.compare import error
from support.triton import DEVICE, INTERPRETED, anywhere

if HAS_TRITON:
    from qknorm.nn.span_ops import fused_span_attention

gpu = pytest.mark.gpu

LENGTHS, MEMORY = [5, 0, 33, 1, 150, 64, 2], [9, 3, 0, 40, 12, 130, 1]
DTYPES = [torch.float32, torch.float16, *([] if INTERPRETED else [torch.bfloat16])]
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
NAN = float("nan")


def drawn(rng, used, room, heads, width, dtype):
    """(rows, heads, width) with a zero vector, one-token sentences and NaN in unused room."""
    x = torch.randn(used + room, heads, width, generator=rng)
    x[3, 0], x[used:] = 0.0, NAN
    return x.to(DEVICE, dtype).requires_grad_()


def projections(kind, dtype, heads=2, width=32, g_values=None, seed=0, lengths=LENGTHS, memory=MEMORY):
    """q, kv, g and spans."""
    rng = torch.Generator().manual_seed(seed)
    packing = Packing.of(lengths, places=len(lengths) + 3, device=DEVICE)
    used, key_used = sum(lengths), sum(memory)
    g = None
    if g_values:
        g = (torch.rand(g_values, generator=rng) * 9 + 1).to(DEVICE).requires_grad_()
    if kind == "cross":
        key_packing = Packing.of(memory, places=len(memory) + 3, device=DEVICE)
        spans = find_spans(packing, used + 70, key_packing, key_used + 7)
        q = drawn(rng, used, 70, heads, width, dtype)
        return q, drawn(rng, key_used, 7, 2 * heads, width, dtype), g, spans
    spans = find_spans(packing, used + 70, is_causal=kind == "causal")
    return drawn(rng, used, 70, 3 * heads, width, dtype), None, g, spans


def held_to_plain(q, kv, g, spans, seed, dropout_p, scale, eps=1e-12, bias=None, unit_values=False):
    """Output and gradients of the kernels against those of the plain function in float64."""
    given = [x for x in (q, kv, g, bias) if x is not None]
    out, _ = fused_span_attention(q, kv, g, *spans, seed, dropout_p, scale, eps, bias, unit_values)
    sees = spans.key_start < spans.key_end
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    direction[~sees] = NAN  # nothing may come of it
    grads = torch.autograd.grad(out, given, direction)
    wide = iter([x.detach().double().requires_grad_() for x in given])
    both = [None if x is None else next(wide) for x in (q, kv, g, bias)]
    plain = plain_span_attention(*both[:3], spans, seed, dropout_p, scale, eps, both[3], unit_values)
    expected = torch.autograd.grad(plain, [x for x in both if x is not None], direction.nan_to_num().double())
    close = CLOSE[q.dtype]
    assert error(out, plain) < close
    for grad, wide_grad in zip(grads, expected, strict=True):
        assert error(grad, wide_grad) < 3 * close
    assert (out[~sees] == 0).all() and (grads[0][~sees] == 0).all()
    if kv is not None:
        assert (grads[1][spans.query_start == spans.query_end] == 0).all()


@anywhere
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("g_values", [None, 1, 2])
def test_kernels_are_the_plain_function(dtype, kind, dropout_p, g_values):
    q, kv, g, spans = projections(kind, dtype, g_values=g_values)
    seed = torch.tensor([12345], device=DEVICE) if dropout_p else None
    held_to_plain(q, kv, g, spans, seed, dropout_p, 1.0 if g_values else 0.2)


@anywhere
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize("g_values", [None, 1, 2])
def test_the_kernels_find_the_gradient_of_a_bias(dtype, kind, g_values):
    q, kv, g, spans = projections(kind, dtype, g_values=g_values, lengths=[7, 0, 40, 1], memory=[9, 3, 1, 70])
    bias = torch.randn(3 * 2 * 32, generator=torch.Generator().manual_seed(3)).to(DEVICE).requires_grad_()
    held_to_plain(q, kv, g, spans, torch.tensor([7], device=DEVICE), 0.2, 1.0 if g_values else 0.2, bias=bias)


@anywhere
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("g_values", [None, 1])
def test_values_may_be_normalised_too(dtype, kind, g_values):
    q, kv, g, spans = projections(kind, dtype, g_values=g_values)
    held_to_plain(q, kv, g, spans, torch.tensor([3], device=DEVICE), 0.3, 0.7, unit_values=True)


@anywhere
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "width"), [(1, 8), (3, 24), (2, 64), (2, 128)])
def test_widths(dtype, heads, width):
    for kind in ("causal", "cross"):
        q, kv, g, spans = projections(
            kind, dtype, heads, width, 1, lengths=[7, 0, 40, 1], memory=[9, 3, 1, 70]
        )
        held_to_plain(q, kv, g, spans, torch.tensor([7], device=DEVICE), 0.2, 1.0)


@anywhere
@pytest.mark.parametrize(("lengths", "memory"), [([0, 0], [0, 0]), ([4, 1], [0, 0]), ([1], [1])])
def test_sentences_without_keys_and_buffers_without_sentences(lengths, memory):
    packing, key_packing = (Packing.of(x, device=DEVICE) for x in (lengths, memory))
    spans = find_spans(packing, sum(lengths), key_packing, sum(memory))
    rng = torch.Generator().manual_seed(0)
    q = torch.randn(sum(lengths), 2, 16, generator=rng).to(DEVICE).requires_grad_()
    kv = torch.randn(sum(memory), 4, 16, generator=rng).to(DEVICE).requires_grad_()
    g = torch.ones(1, device=DEVICE, requires_grad=True)
    held_to_plain(q, kv, g, spans, None, 0.0, 1.0)


@anywhere
@pytest.mark.parametrize(("rows", "first"), [(16, 0), (150, 0), (150, 130)])
def test_the_kernels_drop_what_the_plain_mask_drops(rows, first):
    """Values that are unit vectors at 16 keys and zeros elsewhere show these keys' weights."""
    spans = find_spans(Packing.of([rows], device=DEVICE), rows)
    seed = torch.tensor([2**31 - 1], device=DEVICE)
    qkv = torch.zeros(rows, 6, 16, device=DEVICE)
    qkv[first : first + 16, 4:] = torch.eye(16, device=DEVICE)[:, None]
    out, _ = fused_span_attention(qkv, None, None, *spans, seed, 0.3, 1.0, 0.0)
    kept = keep_mask(seed, 2, rows, rows, 0.3)[:, :, first : first + 16]
    assert torch.equal(out > 0, kept.transpose(0, 1))


@gpu
def test_the_plain_mask_compiled_is_the_plain_mask():
    """Where the kernels cannot be used, dropout is this mask, compiled."""
    seed = torch.tensor([12345], device=DEVICE)
    torch.compiler.reset()
    compiled = torch.compile(keep_mask, fullgraph=True)
    assert torch.equal(compiled(seed, 3, 70, 5000, 0.3), keep_mask(seed, 3, 70, 5000, 0.3))


@anywhere
def test_runs_are_equal_bit_for_bit():
    q, kv, g, spans = projections("self", torch.float16, g_values=2)
    seed = torch.tensor([3], device=DEVICE)

    def once():
        out, _ = fused_span_attention(q, kv, g, *spans, seed, 0.3, 1.0, 1e-12)
        return out, *torch.autograd.grad(out, (q, g), torch.ones_like(out))

    for a, b in zip(once(), once(), strict=True):
        assert torch.equal(a, b)


@anywhere
def test_can_be_differentiated_twice():
    rng = torch.Generator().manual_seed(0)
    q, kv = (torch.randn(5, n, 16, generator=rng).to(DEVICE).requires_grad_() for n in (2, 4))
    g = torch.tensor([3.0, 9.0], device=DEVICE, requires_grad=True)
    packings = [Packing.of(n, device=DEVICE) for n in ([3, 2], [4, 1])]
    spans = find_spans(packings[0], 5, packings[1], 5)
    drop = torch.tensor([3], device=DEVICE), 0.3
    second = []
    for out in (
        fused_span_attention(q, kv, g, *spans, *drop, 1.0, 1e-12)[0],
        plain_span_attention(q, kv, g, spans, *drop, 1.0, 1e-12),
    ):
        first = torch.autograd.grad(out.pow(3).sum(), (q, kv, g), create_graph=True)
        second.append(torch.autograd.grad(sum(x.square().sum() for x in first), (q, kv, g)))
    for a, b in zip(*second, strict=True):
        assert error(a, b) < 1e-5


@gpu
@pytest.mark.parametrize("kind", ["self", "cross"])
def test_the_operation_is_well_formed(kind):
    q, kv, g, spans = projections(kind, torch.float32, g_values=2)
    with torch.no_grad():
        for x in (q, kv):
            if x is not None:
                x.nan_to_num_()
    seed = torch.tensor([3], device=DEVICE)
    torch.library.opcheck(fused_span_attention, (q, kv, g, *spans, seed, 0.3, 1.0, 1e-12))


E, H = 128, 4


def flat(lengths, room, dtype, seed=0):
    """Sentences in one buffer, and unused rows of something large."""
    x = torch.randn(sum(lengths), E, generator=torch.Generator().manual_seed(seed))
    return torch.cat([x, torch.full((room, E), 1e3)]).to(DEVICE, dtype).requires_grad_()


def called(made, kind, x, memory, spans=None):
    packing = Packing.of(LENGTHS, places=10, max_length=160, device=DEVICE)
    if kind == "cross":
        key_packing = Packing.of(MEMORY, places=10, max_length=160, device=DEVICE)
        return made(
            x, memory, memory, need_weights=False, packing=packing, key_packing=key_packing, spans=spans
        )[0]
    return made(x, need_weights=False, packing=packing, is_causal=kind == "causal", spans=spans)[0]


@gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("norm", [None, "l2"])
def test_a_module_with_the_kernels_is_the_module_without(compiled, dtype, kind, norm):
    """An observed module takes the other path: the same module, the same answer."""
    torch.manual_seed(0)
    made = MultiheadAttention(E, H, qk_norm=norm, device=DEVICE, dtype=dtype)
    x, memory = flat(LENGTHS, 11, dtype), flat(MEMORY, 7, dtype, seed=1)
    assert made._takes_spans(x, memory, memory)
    given = [x, *([memory] if kind == "cross" else []), *made.parameters()]
    torch.compiler.reset()
    function = torch.compile(made, fullgraph=True) if compiled else made
    out = called(function, kind, x, memory)
    direction = torch.randn_like(out)
    grads = torch.autograd.grad(out, given, direction)
    made._observer = lambda seen: None
    other = called(made, kind, x, memory)
    expected = torch.autograd.grad(other, given, direction)
    close = CLOSE[dtype]
    assert error(out, other) < close
    for a, b in zip(grads, expected, strict=True):
        assert error(a, b) < 3 * close


@gpu
def test_autocast_and_shared_spans():
    made = MultiheadAttention(E, H, qk_norm="l2", device=DEVICE)
    x = flat(LENGTHS, 11, torch.float32)
    spans = find_spans(Packing.of(LENGTHS, places=10, device=DEVICE), x.size(0), is_causal=True)
    with torch.autocast("cuda", torch.bfloat16):
        own, shared = called(made, "causal", x, x), called(made, "causal", x, x, spans)
    assert own.dtype == torch.bfloat16 and torch.equal(own, shared)
    assert error(own, called(made, "causal", x, x)) < 3e-2
    (grad,) = torch.autograd.grad(shared.float().square().sum(), made.qk_scale)
    assert grad.dtype == torch.float32 and grad.isfinite().all()


@gpu
def test_paths_the_kernels_do_not_take():
    x = flat(LENGTHS, 0, torch.float32)
    made = MultiheadAttention(E, H, qk_norm="l2", device=DEVICE)
    assert made._takes_spans(x, x, x) and not made._takes_spans(x, x, x.clone())
    assert not MultiheadAttention(E, H, qk_norm="rms", device=DEVICE)._takes_spans(x, x, x)
    with_values = MultiheadAttention(E, H, qk_norm="l2", v_norm=True, device=DEVICE)
    assert with_values._takes_spans(x, x, x)
    with_values.v_norm.eps = 0.5
    assert not with_values._takes_spans(x, x, x)
    assert not can_fuse_spans(x.double(), 32) and not can_fuse_spans(x, 192)


@gpu
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("compiled", [False, True])
def test_replayed_graphs_draw_anew(dropout_p, compiled):
    q, kv, g, spans = projections("causal", torch.bfloat16, width=64, g_values=1)
    with torch.no_grad():
        q.nan_to_num_()
    torch.compiler.reset()

    def attend():
        return span_attention(q, kv, g, spans, dropout_p, eps=1e-12)

    function = torch.compile(attend, fullgraph=True) if compiled else attend

    def step():
        out = function()
        return out, *torch.autograd.grad(out.float().square().sum(), (q, g))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    replays = []
    for _ in range(3):
        graph.replay()
        replays.append([x.clone() for x in results])
    same = [all(map(torch.equal, replays[0], other)) for other in replays[1:]]
    assert same == [dropout_p == 0.0] * 2
    assert all(x.isfinite().all() for x in replays[-1])
    if dropout_p == 0.0:
        for a, b in zip(replays[0], step(), strict=True):
            assert torch.equal(a, b)


@gpu
def test_dropout_in_a_module_keeps_the_mean():
    made = MultiheadAttention(E, H, dropout=0.3, qk_norm="l2", device=DEVICE)
    x = flat(LENGTHS, 5, torch.float32)
    outs = torch.stack([called(made, "self", x, x).detach() for _ in range(400)])
    plain = called(made.eval(), "self", x, x)
    assert outs.std(0)[: sum(LENGTHS)].mean() > 1e-2 and error(outs.mean(0), plain) < 0.1


@gpu
def test_other_sentences_do_not_compile_again():
    made = MultiheadAttention(E, H, dropout=0.1, qk_norm="l2", device=DEVICE, dtype=torch.bfloat16)
    torch.compiler.reset()
    compiled = torch.compile(made, fullgraph=True)
    x = flat([128], 0, torch.bfloat16)
    for lengths in ([5, 60], [128], [1, 2, 3, 4]):
        packing = Packing.of(lengths, places=8, max_length=128, device=DEVICE)
        stance = "default" if lengths == [5, 60] else "fail_on_recompile"
        with torch.compiler.set_stance(stance):
            out = compiled(x, need_weights=False, packing=packing)[0]
            out.sum().backward()
        assert out.isfinite().all() and x.grad.isfinite().all()


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_compiled_is_the_model(dtype):
    settings = ModelSettings(
        d_model=E, d_ff=256, heads=H, encoder_layers=2, decoder_layers=2,
        dropout=0.0, attention_dropout=0.0, ff_dropout=0.0, word_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Transformer(50, settings).to(DEVICE, dtype)
    source, target = (torch.randint(4, 50, (sum(n) + 9,), device=DEVICE) for n in (LENGTHS, MEMORY))
    packings = [Packing.of(n, places=9, max_length=160, device=DEVICE) for n in (LENGTHS, MEMORY)]
    torch.compiler.reset()
    outs = [function(source, target, *packings) for function in (model, torch.compile(model, fullgraph=True))]
    assert error(*outs) < (1e-4 if dtype == torch.float32 else 6e-2)
    grads = [torch.autograd.grad(x.float().logsumexp(-1).sum(), list(model.parameters())) for x in outs]
    for a, b in zip(*grads, strict=True):
        assert error(a, b) < (1e-3 if dtype == torch.float32 else 1e-1)
