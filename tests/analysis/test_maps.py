"""Attention maps of a sentence: the weights are the model's own, and words are sums of their subwords."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from qknorm.analysis import pair_attention, sentence_attention
from qknorm.analysis.weights import batch_weights, modules
from qknorm.data import Subwords
from qknorm.errors import UserError
from qknorm.ids import BOS, EOS, PAD
from qknorm.model import ModelSettings, Transformer
from qknorm.nn.functional import attention_logits
from qknorm.translation import cross_attention
from qknorm.translation.translator import Translator

SENTENCE = "ano casa gato home"


@pytest.fixture(scope="module")
def translator(runs) -> Translator:
    return Translator.load(runs[0].path, "cpu")


@pytest.mark.parametrize("qk_norm", ["l2", None])
def test_weights_are_the_softmax_of_the_logits(qk_norm):
    """Every module's weights against its own queries and keys, softmax in NumPy."""
    torch.manual_seed(0)
    model = Transformer(
        12, ModelSettings(d_model=16, d_ff=8, heads=4, encoder_layers=2, decoder_layers=2, qk_norm=qk_norm)
    ).eval()
    source = torch.tensor([[5, 6, 7, EOS], [8, EOS, PAD, PAD]])
    target = torch.tensor([[BOS, 9, 10], [BOS, 4, 11]])
    seen = {}
    for kind, found in modules(model).items():
        for layer, module in enumerate(found):
            module._observer = lambda logits, key=(kind, layer): seen.__setitem__(key, logits)
    weights = batch_weights(model, source, target)
    assert {kind: tuple(each.shape) for kind, each in weights.items()} == {
        "encoder": (2, 2, 4, 4, 4), "decoder": (2, 2, 4, 3, 3), "cross": (2, 2, 4, 3, 4)
    }  # fmt: skip
    for (kind, layer), logits in seen.items():
        scores = attention_logits(logits.q, logits.k, logits.attn_mask, logits.scale).detach().numpy()
        if logits.is_causal:
            scores = np.where(np.tril(np.ones(scores.shape[-2:])) > 0, scores, -np.inf)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        wanted = powers / powers.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(weights[kind][:, layer].numpy(), wanted, atol=1e-6)
    assert len(seen) == 6
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_maps_of_a_batch_are_those_of_each_alone_and_of_the_search(translator):
    model, subwords = translator.models[0], translator.subwords
    sources = subwords.encode(["ano", SENTENCE, "bico dente ela"], "source")
    targets = subwords.encode(["year", "man cat", "she tooth peak"], "target")
    together = pair_attention(model, subwords, sources, targets)
    cross = cross_attention(model, sources, targets)
    for i, seen in enumerate(together):
        (alone,) = pair_attention(model, subwords, [sources[i]], [targets[i]])
        for kind in ("encoder", "decoder", "cross"):
            assert seen[kind].weights.shape[2:] == (len(seen[kind].rows), len(seen[kind].columns))
            np.testing.assert_allclose(seen[kind].weights, alone[kind].weights, atol=1e-6)
        np.testing.assert_allclose(seen.cross.weights, cross[i].numpy(), atol=1e-5)
    assert [each.source for each in together] == ["ano", SENTENCE, "bico dente ela"]


def test_the_tokens_of_the_axes(translator):
    seen = sentence_attention(translator, SENTENCE, "man cat")
    assert seen.encoder.rows == seen.encoder.columns == seen.cross.columns
    assert seen.decoder.columns[0] == "<s>" and seen.decoder.rows == [*seen.decoder.columns[1:], "</s>"]
    assert seen.words().cross.columns == ["ano", "casa", "gato", "home", "</s>"]
    assert seen.words().decoder.rows == ["man", "cat", "</s>"]
    assert seen.words().decoder.columns == ["<s>", "man", "cat"]
    assert not np.triu(seen.decoder.weights, 1).any()


def test_words_sum_columns_and_average_rows(translator):
    seen = sentence_attention(translator, SENTENCE, "man cat house").cross
    joined = seen.words()
    assert len(joined.rows) < len(seen.rows), "the subwords are whole words: nothing is tested"
    np.testing.assert_allclose(joined.weights.sum(-1), 1, atol=1e-6)
    for w, v in np.ndindex(len(joined.rows), len(joined.columns)):
        rows = [i for i, number in enumerate(seen.row_words.numbers) if number == w]
        columns = [i for i, number in enumerate(seen.column_words.numbers) if number == v]
        wanted = sum(seen.weights[:, :, i, j] for i in rows for j in columns) / len(rows)
        np.testing.assert_allclose(joined.weights[:, :, w, v], wanted, atol=1e-6)


def test_without_a_target_it_is_the_translators_own(translator):
    seen = sentence_attention(translator, f" {SENTENCE} ")
    (said,) = translator.stream([SENTENCE])
    assert seen.translation == said[0].text and seen.decoder.rows == [*said[0].pieces, "</s>"]
    about = json.loads(json.dumps(seen.to_json()))
    assert np.shape(about["cross"]["weights"]) == seen.cross.weights.shape


def test_wrong_use_is_named(translator):
    with pytest.raises(UserError, match="The sentence is blank"):
        sentence_attention(translator, "  ")
    two = Translator(translator.models * 2, translator.subwords, translator.decoding)
    with pytest.raises(UserError, match="an ensemble has none"):
        sentence_attention(two, SENTENCE)
    with pytest.raises(ValueError, match="an empty source"):
        pair_attention(translator.models[0], translator.subwords, [[]], [[5]])


RAW = ["it’s 12:30, on 4 May 2020.", "Ñandú  два слова", "שלום עולם!"]


def test_words_of_raw_text():
    subwords = Subwords.learn(RAW, RAW, kind="raw", operations=20)
    (ids,) = subwords.encode(["the 2020–21 ☃ season."], "source")
    numbers = subwords.word_numbers(ids)
    places = [[i for i, n in zip(ids, numbers, strict=True) if n == word] for word in range(numbers[-1] + 1)]
    assert subwords.decode(places) == ["the", "2020", "–", "21", "☃", "season", "."]
    assert numbers == sorted(numbers)
    assert subwords.word_numbers([]) == []
    unspaced = ids[1:] if subwords.pieces(ids)[0] == "▁" else ids
    assert subwords.word_numbers(unspaced)[-1] == numbers[-1]


def test_words_of_scripts_without_spaces():
    """A letter, or the subword that holds several; never part of one, however it is spelt."""
    subwords = Subwords.learn(["我喜欢猫", "他喜欢书"], ["我喜欢猫", "他喜欢书"], kind="raw", operations=1)
    (ids,) = subwords.encode(["我喜欢東, a 猫"], "source")
    numbers = subwords.word_numbers(ids)
    places = [[i for i, n in zip(ids, numbers, strict=True) if n == word] for word in sorted(set(numbers))]
    assert subwords.decode(places) == ["我", "喜欢", "東", ",", "a", "猫"]


def test_words_of_tokenised_text():
    subwords = Subwords.learn(["casas bonitas"], ["houses fine"], kind="words", operations=2)
    (ids,) = subwords.encode(["casas é bonitas"], "source")
    numbers = subwords.word_numbers(ids)
    assert numbers[0] == 0 and numbers[-1] == 2
    assert [n for n, i in zip(numbers, ids, strict=True) if subwords.pieces([i]) == ["<unk>"]] == [1]
    assert subwords.word_numbers([]) == []
