"""Packed = padded, outputs and gradients, with unused room full of anything; and what is refused."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qknorm.nn import MultiheadAttention, Packing, pack, packed_attention, unpack
from qknorm.nn.packed import _memory_efficient
from support.compare import error

E, H = 16, 4


def flat(lengths, room, fill=1e4, seed=0):
    """(rows, E) of random sentences, and ``room`` unused rows of ``fill`` at the end."""
    x = torch.randn(sum(lengths), E, generator=torch.Generator().manual_seed(seed))
    return torch.cat([x, torch.full((room, E), fill)]).requires_grad_()


def padded_twin(made, x, memory, lengths, memory_lengths, is_causal):
    """Each sentence on its own through the padded form, laid flat again."""
    outs = []
    for sentence, source in zip(x.split(lengths), memory.split(memory_lengths), strict=True):
        key = sentence if memory is x else source
        outs.append(made(sentence[None], key[None], key[None], need_weights=False, is_causal=is_causal)[0][0])
    return torch.cat(outs)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(sum),
    seed=st.integers(0, 100),
    cross=st.booleans(),
    is_causal=st.booleans(),
    room=st.integers(0, 4),
    places=st.integers(0, 3),
    norm=st.sampled_from([None, "l2", "rms", "rms_across_heads"]),
)
def test_packed_is_padded(lengths, seed, cross, is_causal, room, places, norm):
    is_causal = is_causal and not cross
    torch.manual_seed(seed)
    made = MultiheadAttention(E, H, batch_first=True, qk_norm=norm)
    memory_lengths = [(n * 7 + seed) % 5 for n in lengths] if cross else lengths
    assume(sum(memory_lengths) + room)  # a buffer has a row
    x, memory = flat(lengths, room, seed=seed), flat(memory_lengths, 2 * room, seed=seed + 1)
    packing = Packing.of(lengths, places=len(lengths) + places)
    key_packing = Packing.of(memory_lengths, places=len(lengths) + places, max_length=9)
    if cross:
        out, weights = made(x, memory, memory, need_weights=False, packing=packing, key_packing=key_packing)
    else:
        out, weights = made(x, x, x, need_weights=False, is_causal=is_causal, packing=packing)
    used = sum(lengths)
    assert weights is None and out.isfinite().all()
    inputs = [x, memory] if cross else [x]
    parameters = list(made.parameters())
    direction = torch.randn(used, E)
    packed_grads = torch.autograd.grad((out[:used] * direction).sum(), inputs + parameters)

    clean_x = x.detach()[:used].requires_grad_()
    clean_memory = memory.detach()[: sum(memory_lengths)].requires_grad_() if cross else clean_x
    twin = padded_twin(made, clean_x, clean_memory, lengths, memory_lengths, is_causal)
    clean = [clean_x, clean_memory] if cross else [clean_x]
    padded_grads = torch.autograd.grad((twin * direction).sum(), clean + parameters)

    assert error(out[:used], twin) < 2e-6
    for packed_grad, padded_grad in zip(packed_grads, padded_grads, strict=True):
        if packed_grad.shape != padded_grad.shape:
            assert (packed_grad[padded_grad.size(0) :] == 0).all(), "unused room has a gradient"
            packed_grad = packed_grad[: padded_grad.size(0)]
        assert error(packed_grad, padded_grad) < 1e-5


def test_gradients_through_the_whole_buffer_stay_finite():
    """The loss may cover unused rows too, as a mean over a fixed buffer does."""
    made = MultiheadAttention(E, H, qk_norm="l2")
    x = flat([3, 2], room=4)
    out, _ = made(x, x, x, need_weights=False, packing=Packing.of([3, 2]))
    out.square().mean().backward()
    assert x.grad.isfinite().all() and (x.grad[5:] == 0).all()
    assert all(p.grad.isfinite().all() for p in made.parameters())


def test_nan_in_unused_room_reaches_nothing():
    def three(seed):
        rng = torch.Generator().manual_seed(seed)
        return (torch.randn(7, H, 4, generator=rng).requires_grad_() for _ in "qkv")

    clean, dirty = list(three(0)), list(three(0))
    with torch.no_grad():
        for x in dirty:
            x[5:] = float("nan")
    for tensors in (clean, dirty):
        out = packed_attention(*tensors, Packing.of([3, 2]), is_causal=True)
        assert (out[5:] == 0).all()
        out.square().sum().backward()
    for c, d in zip(clean, dirty, strict=True):
        assert torch.equal(c.grad, d.grad)


def test_dropout_in_the_packed_form():
    made = MultiheadAttention(E, H, dropout=0.5, qk_norm="l2")
    x = flat([4, 3], room=2, fill=0.0).detach()
    packing = Packing.of([4, 3])
    torch.manual_seed(0)
    outs = torch.stack([made(x, x, x, need_weights=False, packing=packing)[0] for _ in range(600)])
    assert outs[:, :7].std(0).mean() > 0.02
    plain = made.eval()(x, x, x, need_weights=False, packing=packing)[0]
    assert error(outs.mean(0), plain) < 0.1


def test_sentences_do_not_see_each_other():
    made = MultiheadAttention(E, H, qk_norm="l2").eval()
    x = flat([3, 4], room=0).detach()
    packing = Packing.of([3, 4])
    before = made(x, x, x, need_weights=False, packing=packing)[0]
    x[3:] += 1
    after = made(x, x, x, need_weights=False, packing=packing)[0]
    assert torch.equal(before[:3], after[:3]) and error(before[3:], after[3:]) > 1e-3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(sum), st.integers(0, 3), st.integers(0, 3))
def test_pack_undoes_unpack_and_places_are_right(lengths, room, places):
    packing = Packing.of(lengths, places=len(lengths) + places)
    rows = sum(lengths) + room
    x = torch.arange(1.0, rows + 1)[:, None]
    padded = unpack(x, packing)
    assert padded.shape == (len(lengths) + places, max(lengths), 1)
    back = pack(padded, packing, rows)
    assert torch.equal(back[: sum(lengths)], x[: sum(lengths)]) and (back[sum(lengths) :] == 0).all()
    expected = [(i, p) for i, n in enumerate(lengths) for p in range(n)] + [(0, 0)] * room
    sentence, position = packing.place(rows)
    assert list(zip(sentence.tolist(), position.tolist(), strict=True)) == expected
    assert packing.used(rows).tolist() == [True] * sum(lengths) + [False] * room


def test_gradients_that_a_gpu_kernel_leaves_unwritten_reach_nothing(monkeypatch):
    """PyTorch's memory-efficient kernel writes no gradients of queries whose sentence has no keys."""
    queries, keys = Packing.of([2, 0, 3, 1], places=6), Packing.of([1, 4, 0, 2], places=6)
    keyless = torch.tensor([0, 0, 1, 1, 1, 0, 1, 1], dtype=torch.bool)  # unused room at the end

    def careless(q, *_, **__):
        out = q.clone()
        out.register_hook(lambda grad: grad.masked_fill(keyless[:, None, None], float("nan")))
        return (out,)

    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", careless)
    q, k = torch.randn(8, H, 4, requires_grad=True), torch.randn(7, H, 4)
    _memory_efficient(q, k, k, queries, keys, False, 0.0, 1.0).sum().backward()
    assert (q.grad[keyless] == 0).all() and (q.grad[~keyless] == 1).all()


def test_float_scale_of_the_functional_form():
    q = torch.randn(5, H, 4)
    packing = Packing.of([2, 3])
    assert error(packed_attention(q, q, q, packing, scale=2.0), packed_attention(2 * q, q, q, packing)) < 1e-6


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([], {}, "non-empty list"),
        ([3, -1], {}, "none negative"),
        ([3, 5], {"max_length": 4}, "max_length is 4, but the longest sentence has 5"),
        ([3, 5], {"places": 1}, "places is 1, but there are 2 sentences"),
    ],
)
def test_wrong_lengths_are_named(lengths, options, message):
    with pytest.raises(ValueError, match=message):
        Packing.of(lengths, **options)


P, LONG = Packing.of([3, 2]), Packing(torch.tensor([0, 3, 5], dtype=torch.int32), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(packing=P, query=torch.randn(1, 5, E)), "must be \\(rows, width\\)"),
        (dict(packing=P, need_weights=True), "returns no weights"),
        (dict(packing=P, attn_mask=torch.zeros(5, 5)), "takes no masks"),
        (dict(key_packing=P), "key_packing needs packing"),
        (dict(packing=P, key_packing=Packing.of([5])), "places for 2 sentences, key_packing for 1"),
        (dict(packing=P, key_packing=Packing.of([2, 3]), is_causal=True), "is_causal needs"),
        (dict(packing=P, key=torch.randn(6, E)), "packed q has 5 rows and k 6"),
        (dict(packing=LONG), "max_length is 2, but a sentence has 3 rows"),
        (dict(packing=Packing.of([3, 9])), "ends at row 12, but the buffer has 5 rows"),
        (dict(packing=P, key_packing=Packing.of([3, 9])), "key_packing ends at row 12"),
        (dict(packing=P, key_packing=P, value=torch.randn(4, E)), "one number of rows, not 5 and 4"),
    ],
)
def test_wrong_packed_inputs_are_named(arguments, message):
    arguments = dict(query=torch.randn(5, E), need_weights=False) | arguments
    arguments.setdefault("key", arguments["query"])
    arguments.setdefault("value", arguments["key"])
    with pytest.raises(ValueError, match=message):
        MultiheadAttention(E, H, qk_norm="l2")(**arguments)


def test_appended_keys_do_not_go_with_packing():
    x = torch.randn(5, E)
    with pytest.raises(ValueError, match="add_bias_kv"):
        MultiheadAttention(E, H, add_bias_kv=True)(x, packing=P, need_weights=False)


def test_functional_form_wants_heads():
    with pytest.raises(ValueError, match=r"packed q must be \(rows, heads, width\)"):
        packed_attention(torch.randn(5, E), torch.randn(5, H, 4), torch.randn(5, H, 4), P)
