"""On a CUDA device: the variable-length kernels, low precision, one compilation, every path finite."""

import pytest
import torch

from qknorm.model import ModelSettings, Transformer
from qknorm.nn import MultiheadAttention, Packing, qk_norm_attention
from qknorm.nn.functional import plain_heads
from qknorm.nn.heads import can_fuse, normalized_heads
from qknorm.nn.slots import Sight, SlotCrossCache, SlotSelfCache
from support.compare import error

pytestmark = pytest.mark.gpu
E, H = 128, 4
CUDA = "cuda"


def flat(lengths, room, dtype, seed=0):
    """Sentences in one buffer, and unused rows of something large."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(lengths), E, generator=rng)
    return torch.cat([x, torch.full((room, E), 1e3)]).to(CUDA, dtype).requires_grad_()


LENGTHS, MEMORY = [5, 0, 33, 4, 1, 70], [9, 3, 1, 0, 40, 12]  # some without queries, some without keys


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [None, "l2", "rms"])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("compiled", [False, True])
def test_packed_is_padded(dtype, norm, kind, compiled):
    if compiled and (norm == "rms" or kind == "self"):
        pytest.skip("compiled: one norm and two kinds suffice")
    torch.manual_seed(0)
    made = MultiheadAttention(E, H, batch_first=True, qk_norm=norm, device=CUDA, dtype=dtype)
    reference = MultiheadAttention(E, H, batch_first=True, qk_norm=norm, dtype=torch.float64)
    reference.load_state_dict({k: v.double().cpu() for k, v in made.state_dict().items()})
    x, memory = flat(LENGTHS, 11, dtype), flat(MEMORY, 7, dtype, seed=1)
    packing = Packing.of(LENGTHS, places=8, max_length=128, device=CUDA)
    key_packing = Packing.of(MEMORY, places=8, max_length=64, device=CUDA)
    cross, used = kind == "cross", sum(LENGTHS)
    arguments = dict(need_weights=False, is_causal=kind == "causal")
    torch.compiler.reset()
    function = torch.compile(made, fullgraph=True) if compiled else made
    if cross:
        out = function(x, memory, memory, packing=packing, key_packing=key_packing, **arguments)[0]
    else:
        out = function(x, x, x, packing=packing, **arguments)[0]
    assert out.isfinite().all()
    inputs, parameters = [x, memory] if cross else [x], list(made.parameters())
    direction = torch.randn(used, E, device=CUDA, dtype=dtype)
    grads = torch.autograd.grad((out[:used] * direction).sum(), inputs + parameters)

    wide_x = x.detach().double().cpu()[:used].requires_grad_()
    wide_memory = memory.detach().double().cpu()[: sum(MEMORY)].requires_grad_() if cross else wide_x
    parts = []
    for sentence, source in zip(
        wide_x.split(LENGTHS), wide_memory.split(MEMORY if cross else LENGTHS), strict=True
    ):
        parts.append(reference(sentence[None], source[None], source[None], **arguments)[0][0])
    twin = torch.cat(parts)
    wide_inputs = [wide_x, wide_memory] if cross else [wide_x]
    wide = torch.autograd.grad(
        (twin * direction.double().cpu()).sum(), wide_inputs + list(reference.parameters())
    )
    close = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    assert error(out[:used], twin) < close
    for grad, expected in zip(grads, wide, strict=True):
        if grad.shape != expected.shape:
            assert (grad[expected.size(0) :] == 0).all(), "unused room has a gradient"
            grad = grad[: expected.size(0)]
        assert error(grad, expected) < 3 * close


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "heads", "width"), [(1, 1, 8), (77, 3, 48), (4096, 8, 64), (0, 2, 16)])
def test_fused_heads_are_the_plain_ones(dtype, rows, heads, width):
    rng = torch.Generator().manual_seed(0)
    qkv = torch.randn(rows, 3 * heads, width, generator=rng)
    if rows > 3:
        qkv[2] = 0
    qkv = qkv.to(CUDA, dtype).requires_grad_()
    scale = (torch.rand(heads, generator=rng) * 12).to(CUDA).requires_grad_()
    ups = [torch.randn(rows, heads, width, generator=rng).to(CUDA, dtype) for _ in "qkv"]
    fused = normalized_heads(qkv, scale, 1e-12)
    grads = torch.autograd.grad(fused, (qkv, scale), ups)
    wide, wide_scale = qkv.detach().double().requires_grad_(), scale.detach().double().requires_grad_()
    plain = plain_heads(wide, wide_scale, 1e-12)
    expected = torch.autograd.grad(plain, (wide, wide_scale), [u.double() for u in ups])
    close = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    for a, b in zip((*fused, *grads), (*plain, *expected), strict=True):
        assert error(a, b) < close
    if rows > 3:
        assert (fused[0][2] == 0).all() and (grads[0][2, : 2 * heads] == 0).all()
    if rows:
        from qknorm.nn.kernels import fused_heads

        assert can_fuse(qkv)
        torch.library.opcheck(fused_heads, (qkv, scale, 1e-12))
        one = scale[:1].detach().to(dtype).requires_grad_()  # one g for all heads, in the module's dtype
        single = normalized_heads(qkv, one, 1e-12)
        (dg,) = torch.autograd.grad(single, one, ups)
        wide_one = one.detach().double().requires_grad_()
        (expected_dg,) = torch.autograd.grad(
            plain_heads(wide, wide_one, 1e-12), wide_one, [u.double() for u in ups]
        )
        assert error(dg, expected_dg) < close


def test_fused_heads_can_be_differentiated_twice():
    rng = torch.Generator().manual_seed(0)
    qkv = torch.randn(5, 6, 8, generator=rng).to(CUDA).requires_grad_()
    scale = torch.tensor([3.0, 9.0], device=CUDA, requires_grad=True)
    second = []
    for function in (normalized_heads, plain_heads):
        loss = sum(x.pow(3).sum() for x in function(qkv, scale, 1e-12))
        first = torch.autograd.grad(loss, (qkv, scale), create_graph=True)
        second.append(torch.autograd.grad(sum(g.square().sum() for g in first), (qkv, scale)))
    for a, b in zip(*second, strict=True):
        assert error(a, b) < 1e-5


def test_per_sample_gradients_with_vmap():
    attention = MultiheadAttention(E, H, batch_first=True, qk_norm="l2", device=CUDA)
    parameters = dict(attention.named_parameters())
    x = torch.randn(3, 5, E, device=CUDA)

    def loss(parameters, one):
        out = torch.func.functional_call(attention, parameters, (one[None],), dict(need_weights=True))[0]
        return out.square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    whole = torch.autograd.grad(sum(loss(parameters, one) for one in x), attention.qk_scale)[0]
    assert error(each["qk_scale"].sum(0), whole) < 1e-4


def test_places_compiled():
    lengths = [5, 0, 33, 1, 70]
    packing = Packing.of(lengths, places=8, max_length=128, device=CUDA)
    expected = [(i, p) for i, n in enumerate(lengths) for p in range(n)] + [(0, 0)] * 11
    compiled = torch.compile(lambda cu: Packing(cu, 128).place(120), fullgraph=True)
    for place in (packing.place(120), compiled(packing.cu_seqlens)):
        assert list(zip(*(x.tolist() for x in place), strict=True)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_dropout_keeps_the_mean_and_has_gradients(dtype):
    made = MultiheadAttention(E, H, dropout=0.3, qk_norm="l2", device=CUDA, dtype=dtype)
    x = flat(LENGTHS, 5, dtype)
    packing = Packing.of(LENGTHS, places=8, max_length=128, device=CUDA)
    outs = torch.stack([made(x, x, x, need_weights=False, packing=packing)[0].float() for _ in range(400)])
    plain = made.eval()(x, x, x, need_weights=False, packing=packing)[0]
    assert outs.std(0)[: sum(LENGTHS)].mean() > 1e-2
    assert error(outs.mean(0), plain) < 0.1
    made.train()(x, x, x, need_weights=False, packing=packing)[0].float().square().sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in made.parameters())


def test_other_sentences_do_not_compile_again():
    made = MultiheadAttention(E, H, qk_norm="l2", device=CUDA, dtype=torch.bfloat16)
    torch.compiler.reset()
    compiled = torch.compile(made, fullgraph=True)
    x = flat([128], 0, torch.bfloat16)
    for lengths in ([5, 60], [128], [1, 2, 3, 4]):
        packing = Packing.of(lengths, places=8, max_length=128, device=CUDA)
        stance = "default" if lengths == [5, 60] else "fail_on_recompile"
        with torch.compiler.set_stance(stance):
            out = compiled(x, need_weights=False, packing=packing)[0]
        assert error(out, made(x, need_weights=False, packing=packing)[0]) < 3e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masked", ["none", "bool", "float"])
def test_fused_and_explicit_and_float64_agree(dtype, need_weights, masked):
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, H, 17, 32, generator=rng).to(CUDA, dtype).requires_grad_() for _ in "qkv")
    mask = None
    if masked != "none":
        mask = torch.rand(2, 1, 17, 17, generator=rng).to(CUDA) > 0.5
        mask[0, 0, 3] = False  # a row that may look nowhere
        if masked == "float":
            mask = torch.where(mask, 0.25, -torch.inf).to(dtype)
    g = torch.tensor(12.3, device=CUDA, requires_grad=True)
    result = qk_norm_attention(q, k, v, g, mask, need_weights=need_weights)
    out = result[0] if need_weights else result
    direction = torch.randn(out.shape, generator=rng).to(CUDA, dtype)
    grads = torch.autograd.grad((out * direction).sum(), (q, k, v, g))
    wide = [x.detach().double().cpu().requires_grad_() for x in (q, k, v, g)]
    wide_mask = mask if mask is None else mask.cpu() if masked == "bool" else mask.double().cpu()
    expected = qk_norm_attention(*wide, wide_mask, need_weights=True)[0]
    wide_grads = torch.autograd.grad((expected * direction.double().cpu()).sum(), wide)
    close = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}[dtype]
    assert error(out, expected) < close
    for grad, wide_grad in zip(grads, wide_grads, strict=True):
        assert error(grad, wide_grad) < 3 * close


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_packed_is_padded(dtype):
    settings = ModelSettings(
        d_model=E, d_ff=256, heads=H, encoder_layers=2, decoder_layers=2,
        dropout=0.0, attention_dropout=0.0, ff_dropout=0.0, word_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Transformer(50, settings).to(CUDA, dtype)
    lengths, target_lengths = [7, 4, 30], [6, 9, 2]
    rows = [torch.randint(4, 50, (n,)) for n in (*lengths, *target_lengths)]
    source, target = (torch.nn.utils.rnn.pad_sequence(r, True).to(CUDA) for r in (rows[:3], rows[3:]))
    padded = model(source, target)[target != 0]
    packed = model(
        torch.cat([*rows[:3], torch.zeros(5, dtype=torch.long)]).to(CUDA),
        torch.cat([*rows[3:], torch.zeros(9, dtype=torch.long)]).to(CUDA),
        Packing.of(lengths, places=4, max_length=32, device=CUDA),
        Packing.of(target_lengths, places=4, max_length=32, device=CUDA),
    )[: sum(target_lengths)]
    assert error(packed, padded) < (1e-4 if dtype == torch.float32 else 6e-2)
    grads = [
        torch.autograd.grad(x.float().logsumexp(-1).sum(), list(model.parameters())) for x in (packed, padded)
    ]
    for a, b in zip(*grads, strict=True):
        if dtype == torch.float32:
            assert error(a, b) < 1e-3
        else:  # a ReLU that rounding turns over changes a whole row: of all rows it is little
            assert (a - b).float().norm() < 0.1 * b.float().norm().clamp(min=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("slots", "beam", "heads", "width"), [(3, 4, 8, 64), (1, 1, 2, 8), (5, 5, 3, 48), (256, 4, 8, 64)]
)
def test_fused_slot_attention_is_the_masked_one(dtype, slots, beam, heads, width):
    room, source_room = 112, 64
    rng = torch.Generator().manual_seed(0)
    positions = torch.randint(0, room, (slots,), generator=rng)
    positions[0] = 0
    newest = torch.arange(beam, dtype=torch.int32).view(1, beam, 1).expand(slots, beam, 1)
    ancestors = torch.randint(0, beam, (slots, beam, room), generator=rng, dtype=torch.int32)
    ancestors.scatter_(2, positions.view(-1, 1, 1).expand(slots, beam, 1), newest)
    lengths = torch.randint(1, source_room + 1, (slots,), generator=rng)
    sight = Sight(positions.to(CUDA), ancestors.to(CUDA), lengths.to(CUDA))
    masks = Sight(positions, ancestors, lengths)
    new = [torch.randn(slots, beam, heads, width, generator=rng).to(dtype) for _ in "qkv"]
    own = [torch.randn(slots, heads, room, beam, width, generator=rng).to(dtype) for _ in "kv"]
    source = [torch.randn(slots, heads, source_room, width, generator=rng).to(dtype) for _ in "kv"]
    masks.mask(torch.empty(0, dtype=torch.float64), source_room)
    close = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    cache = SlotSelfCache(*(x.to(CUDA) for x in own), sight)
    twin = SlotSelfCache(*(x.double() for x in own), masks)
    fused = cache.attend(*(x.to(CUDA) for x in new), 0.3)
    assert error(fused, twin.attend(*(x.double() for x in new), 0.3)) < close
    assert torch.equal(cache.keys.cpu().double(), twin.keys)
    assert torch.equal(cache.values.cpu().double(), twin.values)
    fused = SlotCrossCache(*(x.to(CUDA) for x in source), sight).attend(new[0].to(CUDA), 0.3)
    plain = SlotCrossCache(*(x.double() for x in source), masks).attend(new[0].double(), 0.3)
    assert error(fused, plain) < close
