"""A decoding in progress through many steps, against the whole prefixes run at once."""

import pytest
import torch

from qknorm.ids import BOS, EOS
from qknorm.model import ModelSettings, Transformer
from qknorm.nn import SelfCache

V = 30


def model(**switches):
    torch.manual_seed(0)
    target_subwords = torch.arange(V) % 7 != 6
    made = Transformer(
        V,
        ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=2, **switches),
        target_subwords,
    )
    with torch.no_grad():
        made.embedding.bias.normal_()
    return made.double().eval()


@pytest.mark.parametrize(
    "switches",
    [{}, {"qk_norm": None, "fix_norm": False}, {"rotary": True}],
    ids=["qknorm", "plain", "rotary"],
)
@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_hypotheses_may_branch_die_and_leave_for_forty_steps(switches, seed):
    made = model(**switches)
    rng = torch.Generator().manual_seed(seed)
    source = torch.randint(4, V, (4, 6), generator=rng)
    source[1, 3:] = 0
    state = made.start(source)
    ids = torch.full((4, 1, 1), BOS)
    most = 0
    for step in range(40):
        logits, _ = made.step(ids[:, :, -1], state)
        B, K, N = ids.shape
        expected = made(source.repeat_interleave(K, 0), ids.flatten(0, 1))[:, -1].view(B, K, V)
        said = made.target_subwords
        torch.testing.assert_close(logits[..., said], expected[..., said], rtol=1e-9, atol=1e-9)
        assert (logits[..., ~said] < -0.99e9).all()
        most = max(most, state.caches[0].own.length)
        width = 1 if step < 3 else 5 if step < 25 else 2
        parents = torch.randint(0, K, (B, width), generator=rng)
        state.reorder((parents + torch.arange(0, B * K, K)[:, None]).flatten())
        newest = torch.randint(EOS, V, (B, width, 1), generator=rng)
        ids = torch.cat([ids.gather(1, parents[:, :, None].expand(-1, -1, N)), newest], dim=2)
        if step in (10, 30):
            left = torch.tensor([0, 2, 3] if step == 10 else [2, 0])
            state.keep(left)
            source, ids = source[left], ids[left]
    assert state.length == 40
    assert most < 3 + 22 * 5 + 12 * 2, "keys that no hypothesis descends from are dropped"


@torch.no_grad()
def test_a_changed_number_of_hypotheses_is_refused():
    made = model()
    state = made.start(torch.tensor([[5, 6, EOS]]))
    made.step(torch.tensor([[BOS]]), state)
    with pytest.raises(ValueError, match="1 hypotheses a sentence, the new ids 2; use reorder"):
        made.step(torch.tensor([[4, 5]]), state)


def test_positions_of_a_cache_are_kept_by_sequence():
    cache = SelfCache(room=2)
    cache.keep_positions(torch.tensor([[0]]), room=3)  # nothing there yet
    k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 6)
    cache.append(k, v)
    positions = torch.tensor([[4, 0, 1], [2, 3, 3]])
    cache.keep_positions(positions, room=4)
    assert (cache.length, cache.room) == (3, 4)
    more = torch.randn(2, 3, 2, 4), torch.randn(2, 3, 2, 6)
    keys, values = cache.append(*more)
    for b in range(2):
        assert torch.equal(keys[b], torch.cat([k[b][:, positions[b]], more[0][b]], dim=1))
        assert torch.equal(values[b], torch.cat([v[b][:, positions[b]], more[1][b]], dim=1))
