"""What the observer reports, against a count by hand."""

import math

import pytest
import torch
from torch import nn

from qknorm.nn import MultiheadAttention, Packing, SelfCache, convert, observe

E, H = 16, 4


def made(norm="l2", **options):
    torch.manual_seed(0)
    return MultiheadAttention(E, H, batch_first=True, qk_norm=norm, **options).eval()


def by_hand(attention, x, padding=None, is_causal=False):
    """Largest logit, saturated share, entropy: from the weights, rows with a choice only."""
    _, weights = attention(x, x, x, padding, is_causal=is_causal, average_attn_weights=False)
    allowed = torch.ones(x.size(0), 1, x.size(1), x.size(1), dtype=torch.bool)
    if padding is not None:
        allowed = allowed & ~padding[:, None, None]
    if is_causal:
        allowed = allowed.tril()
    rows = weights[(allowed.sum(-1) >= 2).expand(weights.shape[:-1])].double()
    entropy = torch.special.entr(rows).sum(-1)
    return (rows.amax(-1) > 0.99).double().mean().item(), entropy.mean().item(), len(rows)


@pytest.mark.parametrize("norm", [None, "l2", "rms"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_figures_are_those_of_the_weights(norm, is_causal, padded):
    attention, x = made(norm), torch.randn(2, 6, E)
    padding = None
    if padded:
        padding = torch.zeros(2, 6, dtype=torch.bool)
        padding[1, 3:] = True
    with observe(attention) as seen:
        attention(x, x, x, padding, is_causal=is_causal, need_weights=False)
    s = seen[""]
    saturated, entropy, rows = by_hand(attention, x, padding, is_causal)
    assert s.saturated == pytest.approx(saturated)
    assert s.entropy == pytest.approx(entropy, rel=1e-5)
    assert s.rows == rows
    assert s.g == (None if norm is None else pytest.approx(tuple(attention.qk_scale.tolist())))


def test_bounded_logits_and_saturation():
    """The paper's point: large activations saturate the dot product, g bounds the cosine."""
    x = torch.randn(4, 9, E) * 40
    with observe(nn.ModuleList([made(None), made("l2")])) as seen:
        for name in seen:
            seen._modules[name](x, x, x, need_weights=False)
    plain, normalised = seen["0"], seen["1"]
    assert normalised.max_logit <= normalised.g[0] * (1 + 1e-6) < plain.max_logit
    assert plain.saturated > 0.5 > normalised.saturated
    assert normalised.entropy > plain.entropy


def test_calls_add_up_and_nothing_stays_behind():
    attention = made(qk_scale_per="head")
    a, b = torch.randn(1, 4, E), torch.randn(1, 7, E) * 3
    with observe(attention) as both:
        attention(a), attention(b)
    assert attention._observer is None
    attention(a)
    with observe(attention) as first:
        attention(a)
    with observe(attention) as second:
        attention(b)
    assert both[""].rows == first[""].rows + second[""].rows == 11 * H
    assert both[""].max_logit == max(first[""].max_logit, second[""].max_logit)
    mean = (first[""].entropy * 4 + second[""].entropy * 7) / 11
    assert both[""].entropy == pytest.approx(mean) and len(both[""].g) == H


def test_packed_and_cached_calls_count_the_same_rows():
    attention, x = made(), torch.randn(7, E)
    packing = Packing.of([4, 3], places=3)
    with observe(attention) as packed:
        attention(torch.cat([x, x[:2]]), need_weights=False, is_causal=True, packing=packing)
    with observe(attention) as padded:
        for sentence in x.split([4, 3]):
            attention(sentence[None], is_causal=True)
    with observe(attention) as cached:
        for sentence in x.split([4, 3]):
            cache = SelfCache()
            for row in sentence:
                attention(row[None, None], is_causal=True, cache=cache)
    for other in (padded, cached):
        assert packed[""].rows == other[""].rows == 5 * H
        assert packed[""].entropy == pytest.approx(other[""].entropy, rel=1e-5)
        assert packed[""].max_logit == pytest.approx(other[""].max_logit, rel=1e-5)


def test_packed_cross_attention():
    attention, x, memory = made(), torch.randn(3, E), torch.randn(5, E)
    with observe(attention) as seen:
        attention(x, memory, need_weights=False, packing=Packing.of([1, 2]), key_packing=Packing.of([3, 2]))
    assert seen[""].rows == 3 * H


def test_the_table_and_unused_modules():
    layer = nn.TransformerEncoderLayer(E, H, 32, batch_first=True)
    model = nn.ModuleDict({"used": convert(layer, qk_scale_per="head", log=None), "idle": made(None)})
    with observe(model) as seen:
        model["used"](torch.randn(2, 5, E))
    assert len(seen) == 2 and [name for name, _ in seen.items()] == ["used.self_attn", "idle"]
    assert seen["idle"].rows == 0 and math.isnan(seen["idle"].entropy) and seen["idle"].g is None
    table = str(seen)
    assert table.splitlines()[0].split() == ["module", "max", "|logit|", "saturated", "entropy", "g"]
    assert "used.self_attn" in table and "…" in table and "–" in table
    with pytest.raises(KeyError, match="no attention module 'else'; there are 'used.self_attn', 'idle'"):
        seen["else"]


def test_an_error_inside_the_block_leaves_the_model_as_it_was():
    attention = made()
    with pytest.raises(RuntimeError), observe(attention):
        raise RuntimeError
    assert attention._observer is None


def test_nothing_to_observe():
    with pytest.raises(ValueError, match="convert"), observe(nn.MultiheadAttention(E, H)):
        pass
