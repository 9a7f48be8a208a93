"""A mask for each sequence, the same for all its heads."""

import pytest
import torch

from qknorm.nn import MultiheadAttention


@pytest.mark.parametrize("need_weights", [False, True])
def test_one_mask_a_sequence_is_that_mask_for_each_head(need_weights):
    torch.manual_seed(0)
    attention = MultiheadAttention(16, 2, batch_first=True, qk_norm="l2")
    x = torch.randn(3, 4, 16)
    mask = torch.rand(3, 1, 4, 4) < 0.5
    short, _ = attention(x, x, x, attn_mask=mask, need_weights=need_weights)
    whole, _ = attention(
        x, x, x, attn_mask=mask.expand(-1, 2, -1, -1).reshape(6, 4, 4), need_weights=need_weights
    )
    torch.testing.assert_close(short, whole)
    assert not torch.equal(short, attention(x, x, x)[0])


def test_another_shape_is_refused():
    attention = MultiheadAttention(16, 2, batch_first=True, qk_norm="l2")
    x = torch.randn(3, 4, 16)
    with pytest.raises(ValueError, match=r"\(4, 4\) or \(6, 4, 4\) or \(3, 1, 4, 4\), not \(3, 2, 4, 4\)"):
        attention(x, x, x, attn_mask=torch.zeros(3, 2, 4, 4, dtype=torch.bool))
