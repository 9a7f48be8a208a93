"""Cached = uncached, for every norm; keys are normalised once."""

import pytest
import torch

from qknorm.nn import CrossCache, MultiheadAttention, SelfCache
from support.compare import error

E, H, B, T, S = 16, 4, 3, 40, 6
NORMS = [None, "l2", "rms", "layer", "rms_across_heads"]


def made(norm, **options):
    torch.manual_seed(0)
    return MultiheadAttention(E, H, batch_first=True, qk_norm=norm, **options).eval()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("need_weights", [True, False])
def test_step_by_step_is_all_at_once(norm, need_weights):
    attention, x = made(norm), torch.randn(B, T, E)
    whole, weights = attention(x, x, x, is_causal=True, need_weights=need_weights)
    cache = SelfCache(room=4)  # grows four times on the way
    for t in range(T):
        now = x[:, t : t + 1]
        out, w = attention(now, now, now, is_causal=True, cache=cache, need_weights=need_weights)
        assert error(out, whole[:, t : t + 1]) < 2e-6
        if need_weights:
            assert error(w[:, 0], weights[:, t, : t + 1]) < 2e-6
    assert cache.length == T


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("chunks", [(7, 33), (1, 5, 34), (40,)])
def test_chunks_are_causal_inside(norm, chunks):
    attention, x = made(norm), torch.randn(B, T, E)
    whole = attention(x, x, x, is_causal=True, need_weights=False)[0]
    cache = SelfCache()
    parts = [
        attention(c, c, c, is_causal=True, cache=cache, need_weights=False)[0] for c in x.split(chunks, 1)
    ]
    assert error(torch.cat(parts, 1), whole) < 2e-6


def test_padding_mask_with_a_cache():
    attention, x = made("l2"), torch.randn(B, 5, E)
    padding = torch.zeros(B, 5, dtype=torch.bool)
    padding[1, :2] = True
    whole = attention(x, x, x, padding, is_causal=True)[0]
    cache = SelfCache()
    for t in range(5):
        now = x[:, t : t + 1]
        out = attention(now, now, now, padding[:, : t + 1], is_causal=True, cache=cache)[0]
        assert error(out, whole[:, t : t + 1]) < 2e-6


@pytest.mark.parametrize("norm", NORMS)
def test_cross_cache_projects_and_normalises_once(norm):
    attention = made(norm)
    queries, memory = torch.randn(4, B, 1, E), torch.randn(B, S, E)
    padding = torch.zeros(B, S, dtype=torch.bool)
    padding[2, 3:] = True
    cache, calls = CrossCache(), []
    if attention.k_norm is not None:
        attention.k_norm.register_forward_hook(lambda *_: calls.append(1))
    for q in queries:
        uncached = attention(q, memory, memory, padding)[0]
        calls.clear() if cache.filled else None
        cached = attention(q, None if cache.filled else memory, None, padding, cache=cache)[0]
        assert error(cached, uncached) < 2e-6
    assert not calls, "keys in the cache were normalised again"
    if norm is not None:  # the query's norm still works: a filled cache does not bypass it
        assert error(attention(queries[0] * 5, cache=cache, key_padding_mask=padding)[0], cached) > 1e-4


def test_reorder_follows_the_beams():
    attention, x = made("l2"), torch.randn(B, 6, E)
    memory = torch.randn(B, S, E)
    rows = torch.tensor([2, 0, 0, 1])
    own, cross = SelfCache(room=2), CrossCache()
    own.reorder(rows), cross.reorder(rows)  # nothing there yet
    for t in range(5):
        now = x[:, t : t + 1]
        attention(now, now, now, is_causal=True, cache=own)
        attention(now, memory, memory, cache=cross)
    own.reorder(rows), cross.reorder(rows)
    picked, picked_memory = x[rows], memory[rows]
    now = picked[:, 5:]
    out = attention(now, now, now, is_causal=True, cache=own)[0]
    assert error(out, attention(picked, picked, picked, is_causal=True)[0][:, 5:]) < 2e-6
    out = attention(now, cache=cross)[0]
    assert error(out, attention(now, picked_memory, picked_memory)[0]) < 2e-6


def test_long_first_chunk_gets_its_room():
    attention, x = made("l2"), torch.randn(B, 9, E)
    cache = SelfCache(room=2)
    attention(x, x, x, cache=cache)
    assert cache.room == 16 and cache.length == 9


def test_misuse_is_named():
    attention, x = made("l2"), torch.randn(B, 1, E)
    own, cross = SelfCache(), CrossCache()
    attention(x, x, x, cache=own), attention(x, x, x, cache=cross)
    with pytest.raises(ValueError, match="the cache holds 3 sequences, the new keys 2"):
        attention(x[:2], cache=own)
    with pytest.raises(ValueError, match="the cache holds 3 sequences, query 2"):
        attention(x[:2], cache=cross)
    with pytest.raises(ValueError, match="room must be at least 1"):
        SelfCache(0)
    with pytest.raises(ValueError, match="does not go with add_bias_kv"):
        made("l2", add_bias_kv=True)(x, x, x, cache=own)
