"""Scores of given translations against the model's own forward."""

import math

import pytest
import torch

from qknorm.ids import BOS, EOS
from qknorm.translation import cross_attention, force_score, forced
from support.slow_search import next_log_probs, small_model

SOURCES = [[5, 6, 7], [8], [], [9, 4, 11, 10, 5], [7]]
TARGETS = [[4], [5, 6, 7, 8, 9, 10], [4, 5], [11], []]


@pytest.mark.parametrize("batch_tokens", [1, 20, 1000])
@pytest.mark.parametrize("count", [1, 3])
def test_against_the_slow_probabilities(count, batch_tokens):
    models = [small_model(seed) for seed in range(count)]
    scores = force_score(models, SOURCES, TARGETS, batch_tokens=batch_tokens)
    for source, target, score in zip(SOURCES, TARGETS, scores, strict=True):
        chain = [*target, EOS]
        expected = [next_log_probs(models, source, target[:k])[i] for k, i in enumerate(chain)]
        assert score.token_log_probs == pytest.approx(expected, abs=1e-9)
        assert score.log_prob == pytest.approx(math.fsum(expected), abs=1e-9)


def test_logits_in_pieces(monkeypatch):
    whole = force_score(small_model(0), SOURCES, TARGETS)
    monkeypatch.setattr(forced, "ROWS", 3)
    pieces = force_score(small_model(0), SOURCES, TARGETS)
    for a, b in zip(whole, pieces, strict=True):
        assert a.token_log_probs == pytest.approx(b.token_log_probs, abs=1e-9)


def test_nothing_for_nothing():
    (score,) = force_score(small_model(0), [[]], [[]])
    assert (score.log_prob, score.token_log_probs) == (0.0, [])
    assert force_score(small_model(0), [], []) == []


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="one target per source, not 1 for 2"):
        force_score(small_model(0), [[4], [5]], [[4]])
    with pytest.raises(ValueError, match="target 0 has ids from 12 to 12"):
        force_score(small_model(0), [[4]], [[12]])


@pytest.mark.parametrize("batch_tokens", [1, 1000])
def test_attention_is_that_of_the_decoder_layers(batch_tokens):
    model = small_model(0)
    weights = cross_attention(model, SOURCES, TARGETS, batch_tokens=batch_tokens)
    for source, target, given in zip(SOURCES, TARGETS, weights, strict=True):
        if not source:
            assert given.shape == (2, 2, 0, 0)
            continue
        assert given.shape == (2, 2, len(target) + 1, len(source) + 1)
        torch.testing.assert_close(given, slow_attention(model, source, target))


@torch.no_grad()
def slow_attention(model, source, target):
    """The weights of each layer's cross-attention, seen by calling it on its own inputs."""
    weights = []
    hooks = [
        layer.cross_attn.register_forward_pre_hook(
            lambda module, args, kwargs: weights.append(
                type(module).forward(module, *args[:3], None, need_weights=True, average_attn_weights=False)[
                    1
                ][0]
            ),
            with_kwargs=True,
        )
        for layer in model.decoder
    ]
    model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]]))
    for hook in hooks:
        hook.remove()
    return torch.stack(weights)
