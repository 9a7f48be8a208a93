"""Each measure against its formula in NumPy, written out in loops.

Axes: B sentences, L layers, H heads, T positions that look, S positions looked at.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qknorm.analysis.agreement import classical_map, divergence_sums
from qknorm.analysis.contrast import contrast, holm, permutation_p, share_larger
from qknorm.analysis.importance import head_importance, loss_per_subword, masked_head
from qknorm.analysis.measures import MEASURES, Sight, measure_sums
from qknorm.analysis.study import punctuation, study_heads
from qknorm.analysis.text import Text
from qknorm.analysis.weights import modules
from qknorm.data import Subwords
from qknorm.nn import observe
from qknorm.translation.logits import largest_logits
from qknorm.translation.translator import Translator

B, L, H, T, S = 3, 2, 2, 5, 6
ROWS, KEYS = [5, 3, 1], [6, 4, 2]


@pytest.fixture
def batch():
    """Random weights with padding, some rows saturated, and what is where."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(B, L, H, T, S)) * rng.choice([1, 12], size=(B, L, H, T, 1))
    for b in range(B):
        logits[b, ..., KEYS[b] :] = -np.inf
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    ends = np.arange(S) == np.array(KEYS)[:, None] - 1
    return weights, ends, rng.random((B, S)) < 0.3


def sight_of(ends, marks, causal=False) -> Sight:
    rows = torch.arange(T) < torch.tensor(ROWS)[:, None]
    keys = torch.arange(S) < torch.tensor(KEYS)[:, None]
    return Sight.of(rows, keys, torch.tensor(ends), torch.tensor(marks), causal)


@pytest.mark.parametrize("causal", [False, True])
def test_measures_are_their_formulas(batch, causal):
    weights, ends, marks = batch
    if causal:
        weights = np.tril(weights)
        weights = weights / weights.sum(-1, keepdims=True)
    sight = sight_of(ends, marks, causal)
    found = dict(zip(MEASURES, measure_sums(torch.tensor(weights), sight).numpy(), strict=True))
    wanted = {name: np.zeros((L, H)) for name in MEASURES}
    rows = 0
    for b in range(B):
        for i in range(ROWS[b]):
            if min(KEYS[b], i + 1 if causal else S) < 2:
                continue
            rows += 1
            for layer, head in np.ndindex(L, H):
                w = weights[b, layer, head, i]
                told = {
                    "entropy": -sum(p * math.log(p) for p in w if p > 0),
                    "saturated": float(max(w) > 0.99),
                    "distance": sum(p * abs(i - j) for j, p in enumerate(w)),
                    "previous": w[i - 1] if i else 0.0,
                    "same": w[i],
                    "next": w[i + 1] if i + 1 < S else 0.0,
                    "ends": w[KEYS[b] - 1],
                    "punctuation": sum(p for j, p in enumerate(w) if marks[b, j]),
                }
                for name, value in told.items():
                    wanted[name][layer, head] += value
    assert int(sight.rows) == rows
    for name in MEASURES:
        np.testing.assert_allclose(found[name], wanted[name], atol=1e-5, err_msg=name)
    assert wanted["saturated"].sum() > 0


def test_an_even_head(batch):
    _, ends, marks = batch
    sight = sight_of(ends, marks)
    even = dict(zip(MEASURES, measure_sums(sight.even(), sight).flatten().tolist(), strict=True))
    assert even["entropy"] == pytest.approx(5 * math.log(6) + 3 * math.log(4) + math.log(2), rel=1e-5)
    assert even["ends"] == pytest.approx(5 / 6 + 3 / 4 + 1 / 2, rel=1e-5) and even["saturated"] == 0


def test_divergences_are_jensen_shannons(batch):
    weights, ends, marks = batch
    sight = sight_of(ends, marks)
    flat = weights.reshape(B, L * H, T, S)

    def kl(p, q):
        return sum(a * math.log2(a / b) for a, b in zip(p, q, strict=True) if a > 0)

    wanted = np.zeros((L * H, L * H))
    for one, other in np.ndindex(L * H, L * H):
        for b in range(B):
            for i in range(ROWS[b]):
                p, q = flat[b, one, i], flat[b, other, i]
                middle = (p + q) / 2
                wanted[one, other] += (kl(p, middle) + kl(q, middle)) / 2
    found = divergence_sums(torch.tensor(flat), sight.choice)
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-4)
    nowhere_alike = torch.eye(2)[None, :, None, :]  # (1, 2 heads, 1, 2)
    assert divergence_sums(nowhere_alike, torch.tensor([[True]]))[0, 1] == pytest.approx(1)


def test_the_map_keeps_distances_of_points_in_a_plane():
    points = np.random.default_rng(0).normal(size=(7, 2)) * [3, 1]
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    places = classical_map(distances)
    np.testing.assert_allclose(np.linalg.norm(places[:, None] - places, axis=-1), distances, atol=1e-9)
    assert classical_map(np.zeros((1, 1))).shape == (1, 2)


@pytest.fixture(scope="module")
def translator(runs) -> Translator:
    return Translator.load(runs[0].path, "cpu")


@pytest.fixture(scope="module")
def pairs(translator):
    text = Text(
        "a few", ["ano casa", "gato", "ela fume home bico"], ["house year", "cat", "peak man smoke she"]
    )
    subwords = translator.subwords
    return text, subwords.encode(text.sources, "source"), subwords.encode(text.targets, "target")


def test_a_masked_head_is_one_without_an_output(translator, pairs):
    """The same as zeros in the columns of the output projection that read this head."""
    model, (_, sources, targets) = translator.models[0], pairs
    module = modules(model)["cross"][1]
    with masked_head(module, 1):
        masked = loss_per_subword(model, sources, targets)
    kept = module.out_proj.weight.detach().clone()
    with torch.no_grad():
        module.out_proj.weight[:, module.head_dim :] = 0
        expected = loss_per_subword(model, sources, targets)
        module.out_proj.weight.copy_(kept)
    whole, rises = head_importance(model, sources, targets)
    assert masked == pytest.approx(expected, abs=1e-5) and masked != pytest.approx(whole, abs=1e-4)
    assert rises["cross"][1, 1] == pytest.approx(masked - whole, abs=1e-6)
    assert {kind: each.shape for kind, each in rises.items()} == dict.fromkeys(rises, (2, 2))


def test_largest_logits_are_those_of_each_sentence_alone(translator, pairs):
    model, (_, sources, targets) = translator.models[0], pairs
    wanted: dict[str, float] = {}
    with torch.no_grad():
        for source, target in zip(sources, targets, strict=True):
            with observe(model) as seen:
                model(torch.tensor([[*source, 3]]), torch.tensor([[2, *target]]))
            for name, stats in seen.items():
                wanted[name] = max(wanted.get(name, 0.0), stats.max_logit)
    assert largest_logits(model, sources, targets) == pytest.approx(wanted, rel=1e-4)
    assert len(wanted) == 6


def test_a_study_is_the_same_whatever_the_batches(translator, pairs):
    model, text = translator.models[0], pairs[0]
    one = study_heads(model, translator.subwords, text, "run", importance=False)
    other = study_heads(model, translator.subwords, text, "run", importance=False, batch_tokens=1)
    for kind in one.kinds:
        for name, values in one.kinds[kind].figures().items():
            np.testing.assert_allclose(values, other.kinds[kind].figures()[name], atol=1e-4, err_msg=name)
        assert one.kinds[kind].rows == other.kinds[kind].rows and len(one.kinds[kind].g) == 2
    encoder = one.kinds["encoder"]
    assert encoder.rows == sum(len(s) + 1 for s in pairs[1])
    np.testing.assert_allclose(np.diag(encoder.distances), 0)
    assert encoder.distances[0, 1] == encoder.distances[1, 0] > 0
    assert all(0 < largest <= g[0] + 1e-3 for g, largest in zip(encoder.g, encoder.max_logit, strict=True))


def test_punctuation_is_that_and_nothing_else():
    subwords = Subwords.learn(["a , b .", "¿ c ؟"], ["d 。 + e"], kind="words", operations=3)
    marks = punctuation(subwords)
    found = {piece for i, piece in enumerate(subwords.pieces(range(subwords.size))) if marks[i]}
    assert {",", ".", "¿", "؟", "。"} <= found and not found & {"a", "+", "<unk>", "</s>"}


def test_tests_of_distributions(translator, pairs):
    a, b = np.array([1.0, 2.0, 3.0]), np.array([10.0, 11.0, 12.0])
    assert permutation_p(a, b, shuffles=4000) == pytest.approx(2 / 20, abs=0.02)  # of 20 divisions two
    assert permutation_p(a, a) == 1.0
    assert share_larger(a, b) == 0 and share_larger(b, a) == 1 and share_larger(a, a) == 0.5
    assert share_larger(np.array([1.0, 3.0]), np.array([2.0])) == 0.5
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06]) and holm([0.9, 0.6]) == [1.0, 1.0]
    study = study_heads(translator.models[0], translator.subwords, pairs[0], "run", importance=False)
    same = contrast(study, study, shuffles=50)
    assert {each.p_value for each in same} == {1.0} and {each.larger for each in same} == {0.5}
    assert ("decoder", "next") not in {(each.kind, each.measure) for each in same}
