"""Steps over caches of static shape against attention over each hypothesis's own past."""

import pytest
import torch

from qknorm.nn import CrossCache, MultiheadAttention, RotaryPositions
from qknorm.nn.slots import Sight, SlotCrossCache, SlotSelfCache

B, K, T, S, E, H = 3, 4, 16, 6, 12, 2
D = E // H
NORMS = [None, "l2", "rms", "rms_across_heads"]


def made(norm, rotary=False):
    torch.manual_seed(0)
    turning = RotaryPositions(D) if rotary else None
    return MultiheadAttention(
        E, H, batch_first=True, qk_norm=norm, dtype=torch.float64, rotary=turning
    ).eval()


def empty(*shape):
    return torch.zeros(B, H, *shape, D, dtype=torch.float64)


@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_a_hypothesis_sees_its_ancestors_only(norm):
    attention, rng = made(norm), torch.Generator().manual_seed(1)
    positions = torch.tensor([0, 3, 5])  # each slot at a place of its own
    ancestors = torch.zeros(B, K, T, dtype=torch.int32)
    keys, values = empty(T, K), empty(T, K)
    past = [[torch.empty(0, E, dtype=torch.float64) for _ in range(K)] for _ in range(B)]
    for b in range(B):  # what came before is given to all hypotheses alike
        x = torch.randn(1, int(positions[b]), E, generator=rng, dtype=torch.float64)
        if x.size(1):
            k, v = attention.keys_and_values(x)
            keys[b, :, : x.size(1)], values[b, :, : x.size(1)] = k[0].unsqueeze(2), v[0].unsqueeze(2)
        past[b] = [x[0]] * K
    for _ in range(8):
        x = torch.randn(B, K, E, generator=rng, dtype=torch.float64)
        sight = Sight(positions, ancestors, torch.ones(B, dtype=torch.int64))
        for b in range(B):
            ancestors[b, :, positions[b]] = torch.arange(K)
            past[b] = [torch.cat([before, new[None]]) for before, new in zip(past[b], x[b], strict=True)]
        sight.mask(x, S)
        out = attention.step(x, SlotSelfCache(keys, values, sight))
        for b in range(B):
            for k in range(K):
                alone, _ = attention(past[b][k][None], need_weights=False, is_causal=True)
                torch.testing.assert_close(out[b, k], alone[0, -1])
        parents = torch.randint(0, K, (B, K), generator=rng)
        ancestors = ancestors.gather(1, parents[:, :, None].expand(-1, -1, T))
        past = [[past[b][k] for k in parents[b].tolist()] for b in range(B)]
        positions = positions + 1


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rotary", [False, True])
@torch.no_grad()
def test_sources_of_different_lengths(norm, rotary):
    attention = made(norm, rotary)
    turns = attention.rotary(1, 5) if rotary else None
    memory, x = torch.randn(B, S, E, dtype=torch.float64), torch.randn(B, K, E, dtype=torch.float64)
    lengths = torch.tensor([6, 1, 4])
    sight = Sight(torch.zeros(B, dtype=torch.int64), torch.zeros(B, K, T, dtype=torch.int32), lengths)
    cache = SlotCrossCache(empty(S + 2), empty(S + 2), sight)
    cache.fill(torch.tensor([2, 0, 1]), *attention.keys_and_values(memory[[2, 0, 1]]))
    sight.mask(x, S + 2)
    padding = torch.arange(S) >= lengths[:, None]
    whole = dict(need_weights=False, cache=CrossCache(), turns=turns)
    expected, _ = attention(x, memory, memory, padding, **whole)
    turns = turns.expand(B, 1, D) if rotary else None
    torch.testing.assert_close(attention.step(x, cache, turns), expected)


def test_appended_keys_are_refused():
    attention = MultiheadAttention(E, H, add_zero_attn=True)
    with pytest.raises(ValueError, match="does not go with"):
        attention.step(torch.zeros(B, K, E), None)
