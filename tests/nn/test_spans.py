"""Spans are what packings say, attention over them is attention in each sentence, dropout is fair."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from qknorm.nn import MultiheadAttention, Packing, packed_attention
from qknorm.nn.functional import l2_normalize, plain_heads
from qknorm.nn.span_attention import can_fuse_spans, span_attention
from qknorm.nn.spans import Spans, find_spans, keep_mask, plain_span_attention
from support.compare import error

H, D = 3, 4


def owners(lengths, rows):
    """The sentence of each row, −1 in unused room."""
    return [i for i, n in enumerate(lengths) for _ in range(n)] + [-1] * (rows - sum(lengths))


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5),
    room=st.integers(0, 3),
    kind=st.sampled_from(["self", "causal", "cross"]),
)
def test_spans_are_the_sentences(pairs, room, kind):
    lengths, memory = [a for a, _ in pairs], [b for _, b in pairs]
    rows, key_rows = sum(lengths) + room, sum(memory) + 2 * room
    packing, key_packing = Packing.of(lengths, places=7), Packing.of(memory, places=7)
    if kind == "cross":
        spans = find_spans(packing, rows, key_packing, key_rows)
        own, other = owners(lengths, rows), owners(memory, key_rows)
    else:
        spans = find_spans(packing, rows, is_causal=kind == "causal")
        own = other = owners(lengths, rows)
    seen = [
        [a == b != -1 and (kind != "causal" or s <= r) for s, b in enumerate(other)]
        for r, a in enumerate(own)
    ]
    assert all(x.dtype == torch.int32 for x in spans)
    row, key = torch.arange(rows)[:, None], torch.arange(len(other))
    assert ((spans.key_start[:, None] <= key) & (key < spans.key_end[:, None])).tolist() == seen
    near = (spans.query_start <= row) & (row < spans.query_end)
    assert bool((near | ~torch.tensor(seen, dtype=torch.bool).view(near.shape)).all())
    assert (near.sum(0) == 0).tolist() == [b == -1 or b not in own for b in other]


LENGTHS, MEMORY = [4, 0, 1, 6], [2, 3, 1, 5]


def projections(kind, room=2, fill=float("nan"), dtype=torch.float64):
    """q, kv, g and spans of random sentences, with a zero vector among them."""
    rng = torch.Generator().manual_seed(0)
    packing, key_packing = Packing.of(LENGTHS, places=6), Packing.of(MEMORY, places=6)
    rows, key_rows = sum(LENGTHS) + room, sum(MEMORY) + room

    def drawn(used, heads):
        x = torch.randn(used + room, heads, D, generator=rng, dtype=dtype)
        x[1, 0], x[used:] = 0.0, fill
        return x.requires_grad_()

    g = (torch.rand(H, generator=rng, dtype=dtype) * 9 + 1).requires_grad_()
    if kind == "cross":
        spans = find_spans(packing, rows, key_packing, key_rows)
        return drawn(sum(LENGTHS), H), drawn(sum(MEMORY), 2 * H), g, spans
    return drawn(sum(LENGTHS), 3 * H), None, g, find_spans(packing, rows, is_causal=kind == "causal")


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("normalized", [True, False])
def test_plain_is_packed_attention(kind, normalized):
    q, kv, g, spans = projections(kind)
    g = g if normalized else None
    scale = 1.0 if normalized else 0.5
    out = plain_span_attention(q, kv, g, spans, None, 0.0, scale, 1e-12)
    given = [x for x in (q, kv, g) if x is not None]
    direction = torch.randn(out.shape, dtype=out.dtype)
    grads = torch.autograd.grad(out, given, direction)
    assert out.isfinite().all() and (out[sum(LENGTHS) :] == 0).all()
    assert (grads[0][sum(LENGTHS) :] == 0).all() and all(x.isfinite().all() for x in grads)
    if normalized:
        assert (grads[0][1, 0] == 0).all(), "a zero query has no direction and no gradient"

    clean = [x.detach().nan_to_num().requires_grad_() for x in given]
    if kv is None and normalized:
        heads = plain_heads(clean[0], clean[-1], 1e-12)
    else:
        heads = clean[0].chunk(3, 1) if kv is None else (clean[0], *clean[1].chunk(2, 1))
        if normalized:
            heads = l2_normalize(heads[0], clean[-1][:, None]), l2_normalize(heads[1]), heads[2]
    key_packing = Packing.of(MEMORY, places=6) if kind == "cross" else None
    packed = packed_attention(
        *heads, Packing.of(LENGTHS, places=6), key_packing, is_causal=kind == "causal", scale=scale
    )
    assert error(out, packed) < 1e-12
    for a, b in zip(grads, torch.autograd.grad(packed, clean, direction), strict=True):
        assert error(a, b) < 1e-12


def test_plain_is_the_formula():
    q, kv, g, spans = projections("cross", room=0)
    out = span_attention(q, kv, g, spans, eps=1e-12)
    x, y, gain = (t.detach().numpy() for t in (q, kv, g))
    expected = np.zeros((sum(LENGTHS), H, D))
    for r, sentence in enumerate(owners(LENGTHS, sum(LENGTHS))):
        mine = [s for s, b in enumerate(owners(MEMORY, sum(MEMORY))) if b == sentence]
        for h in range(H):
            keys, values = y[mine, h], y[mine, H + h]
            keys = keys / np.maximum(np.linalg.norm(keys, axis=-1, keepdims=True), 1e-12)
            query = gain[h] * x[r, h] / max(np.linalg.norm(x[r, h]), 1e-12)
            weights = np.exp(keys @ query)
            expected[r, h] = weights @ values / weights.sum()
    assert error(out, expected) < 1e-12


def test_dropout_drops_weights_and_leaves_the_sum_of_the_softmax_alone():
    q, kv, g, spans = projections("cross")
    seed = torch.tensor([5])
    with torch.no_grad():
        kv[:, H:] = 1.0  # the output is then the sum of the kept weights
        summed = plain_span_attention(q, kv, g, spans, seed, 0.4, 1.0, 1e-12)[:, :, 0]
    key = torch.arange(kv.size(0))
    seen = (key >= spans.key_start[:, None]) & (key < spans.key_end[:, None])
    kept = keep_mask(seed, H, q.size(0), kv.size(0), 0.4)
    all_kept = (kept | ~seen).all(-1).T & seen.any(-1, keepdim=True)  # (R, H)
    none_kept = (~kept | ~seen).all(-1).T
    assert all_kept.any() and error(summed[all_kept], torch.full_like(summed[all_kept], 1 / 0.6)) < 1e-12
    assert none_kept.any() and (summed[none_kept] == 0).all()
    some = summed[~all_kept & ~none_kept]
    assert some.numel() and (some > 0).all() and (some < 1 / 0.6).all()


def scrambled(x):
    """MurmurHash3's finish in NumPy's uint32."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


@pytest.mark.parametrize("seed", [0, 12345, 2**31 - 1])
def test_the_mask_is_the_hash_of_the_kernels(seed):
    head, row, key = (np.arange(n, dtype=np.uint32) for n in (3, 70, 5000))
    state = scrambled(np.uint32([seed]) + head * np.uint32(0x9E3779B9))
    state = scrambled(state[:, None] + row * np.uint32(0x85EBCA77))
    bits = scrambled(state[:, :, None] + key * np.uint32(0xC2B2AE3D))
    kept = keep_mask(torch.tensor([seed]), 3, 70, 5000, 0.3)
    assert np.array_equal(kept.numpy(), bits >> np.uint32(8) >= int(0.3 * 2**24))


def test_the_mask_needs_no_number_beyond_int32():
    """A compiler for GPUs counts places in 32 bits, and refuses to multiply them by more."""
    graph = make_fx(lambda seed: keep_mask(seed, 2, 5, 7, 0.3))(torch.tensor([1])).graph
    numbers = [x for node in graph.nodes for x in node.args if isinstance(x, int)]
    assert len(numbers) > 9 and all(-(2**31) <= x < 2**31 for x in numbers)


@pytest.mark.parametrize("dropout_p", [0.1, 0.3, 0.5])
def test_dropout_is_fair_and_independent(dropout_p):
    """The rate is right, and neighbours among rows, keys, heads and seeds know nothing of each other."""
    masks = torch.stack([keep_mask(torch.tensor([s]), 4, 256, 256, dropout_p) for s in (0, 1, 2**31 - 1)])
    dropped = (~masks).double() - dropout_p  # (seeds, heads, rows, keys)
    deviation = (dropout_p * (1 - dropout_p)) ** 0.5

    assert abs(dropped.mean()) < 4 * deviation / dropped.numel() ** 0.5
    for axis in (2, 3):  # sums of columns, then of rows: spread as independent draws are
        sums = dropped.sum(axis) / (deviation * 16)
        assert abs(sums.var() - 1) < 6 * (2 / sums.numel()) ** 0.5
        assert abs(sums).max() < 5.5
    upper = torch.ones(256, 256, dtype=torch.bool).triu(1)
    pairs = {
        "keys": (dropped[..., 1:], dropped[..., :-1]),
        "rows": (dropped[:, :, 1:], dropped[:, :, :-1]),
        "diagonals": (dropped[:, :, 1:, 1:], dropped[:, :, :-1, :-1]),
        "mirrored": (dropped[..., upper], dropped.transpose(2, 3)[..., upper]),
        "heads": (dropped[:, 1:], dropped[:, :-1]),
        "seeds": (dropped[1:], dropped[:-1]),
    }
    for name, (a, b) in pairs.items():
        product = a * b
        assert abs(product.mean() / product.std() * product.numel() ** 0.5) < 4.5, name


def test_dropout_keeps_the_mean_and_follows_the_seed():
    q, kv, g, spans = projections("self", fill=0.0)
    plain = span_attention(q, kv, g, spans)
    torch.manual_seed(0)
    outs = torch.stack([span_attention(q, kv, g, spans, 0.3).detach() for _ in range(800)])
    assert error(outs.mean(0), plain) < 0.12 and outs.std(0)[: sum(LENGTHS)].mean() > 0.05
    torch.manual_seed(0)
    assert torch.equal(span_attention(q, kv, g, spans, 0.3), outs[0])


def test_what_is_refused():
    packing = Packing.of([3, 2])
    with pytest.raises(ValueError, match="is_causal needs"):
        find_spans(packing, 5, Packing.of([1, 2]), 3, is_causal=True)
    with pytest.raises(ValueError, match="key_packing needs key_rows"):
        find_spans(packing, 5, Packing.of([1, 2]))
    q, kv, g, spans = projections("cross")
    with pytest.raises(ValueError, match="one dtype"):
        span_attention(q, kv.float(), g, spans)
    with pytest.raises(ValueError, match="spans needs packing"):
        MultiheadAttention(8, 2)(torch.randn(5, 8), need_weights=False, spans=spans)


def test_the_same_packing_twice_is_self_attention():
    packing = Packing.of([3, 2])
    again = find_spans(packing, 6, packing, 6, is_causal=True)
    assert all(map(torch.equal, again, find_spans(packing, 6, is_causal=True)))


def test_a_module_on_the_cpu_takes_spans_and_needs_none():
    made = MultiheadAttention(8, 2, qk_norm="l2")
    x, packing = torch.randn(6, 8), Packing.of([3, 2])
    assert not can_fuse_spans(x, 4)
    shared = find_spans(packing, 6)
    outs = [made(x, need_weights=False, packing=packing, spans=spans)[0] for spans in (None, shared)]
    assert isinstance(shared, Spans) and torch.equal(*outs)
