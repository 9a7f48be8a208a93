"""Tied embeddings of unit length."""

import pytest
import torch

from qknorm.nn import FixNormEmbedding, TiedEmbedding
from support.compare import error


def test_fixnorm_rows_have_unit_length_at_every_use():
    embedding = FixNormEmbedding(10, 16)
    ids = torch.tensor([[1, 2], [9, 1]])
    assert error(embedding(ids).norm(dim=-1), torch.full((2, 2), 4.0)) < 1e-6
    assert error(embedding.table().norm(dim=-1), torch.ones(10)) < 1e-6
    with torch.no_grad():
        embedding.weight.mul_(torch.rand(10, 1) * 7)  # an update may change lengths; they never show
    assert error(embedding(ids), 4 * embedding.table()[ids]) < 1e-6
    assert error(embedding.table().norm(dim=-1), torch.ones(10)) < 1e-6


@pytest.mark.parametrize("cls", [FixNormEmbedding, TiedEmbedding])
def test_the_output_projection_is_tied(cls):
    embedding = cls(10, 16)
    with torch.no_grad():
        embedding.bias.normal_()
    h = torch.randn(3, 16)
    expected = h @ (embedding(torch.arange(10)) / 4).T + embedding.bias
    assert error(embedding.project(h), expected) < 1e-6
    assert torch.equal(embedding.project(h, embedding.table()), embedding.project(h))
    assert embedding.project(h.bfloat16()).dtype == torch.bfloat16
    embedding.project(h).logsumexp(-1).sum().backward()
    assert embedding.weight.grad.abs().sum() > 0 and embedding.bias.grad.abs().sum() > 0


def test_initial_values_are_the_authors():
    torch.manual_seed(0)
    fixed, plain = FixNormEmbedding(400, 64), TiedEmbedding(400, 64)
    assert fixed.weight.abs().max() <= 0.01 and fixed.weight.std().item() == pytest.approx(
        0.02 / 12**0.5, rel=0.05
    )
    assert plain.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert (fixed.bias == 0).all() and (plain.bias == 0).all()


def test_bias_is_optional():
    for cls in (FixNormEmbedding, TiedEmbedding):
        embedding = cls(5, 4, bias=False)
        assert embedding.bias is None and embedding.project(torch.randn(2, 4)).shape == (2, 5)
        assert repr(embedding) == f"{cls.__name__}(5, 4, bias=False)"


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="must be positive, not 0 and 4"):
        TiedEmbedding(0, 4)
