"""Tied embeddings of unit length, and sinusoid positions."""

import math

import pytest
import torch

from qknorm.nn import FixNormEmbedding, SinusoidalPositions, TiedEmbedding
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


@pytest.mark.parametrize("odd", ["cosine", "sine"])
def test_positions_are_the_formula(odd):
    table = SinusoidalPositions(8, odd=odd)(50)
    for p in (0, 1, 17, 49):
        for i in range(0, 8, 2):
            angle = p / 10000 ** (i / 8)
            other = math.cos(angle) if odd == "cosine" else math.sin(angle)
            assert table[p, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, i + 1].item() == pytest.approx(other, abs=1e-6)


def test_positions_grow_on_demand_and_stay_out_of_the_state_dict():
    positions = SinusoidalPositions(8, room=4)
    assert positions.state_dict() == {}
    longer = positions(1000)
    assert longer.shape == (1000, 8)
    assert torch.equal(longer, SinusoidalPositions(8, room=1000)(1000))
    assert torch.equal(positions(3, offset=600), longer[600:603])
    assert torch.equal(positions.at(torch.tensor([2, 1500]), 1501)[0], longer[2])
    assert positions.table.size(0) >= 1501


def test_growing_keeps_the_dtype():
    positions = SinusoidalPositions(8, room=4).to(torch.bfloat16)
    assert positions(100).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SinusoidalPositions(7), "embedding_dim must be even, not 7"),
        (lambda: SinusoidalPositions(8, odd="tan"), "odd must be 'cosine' or 'sine', not 'tan'"),
        (lambda: TiedEmbedding(0, 4), "must be positive"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
