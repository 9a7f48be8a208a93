"""Presets by corpus size."""

from __future__ import annotations

from itertools import pairwise

import pytest

from qknorm.config import ModelSettings, Recipe, TrainingSettings, dev_size, make_recipe, preset
from qknorm.errors import UserError


def made(pairs: int) -> Recipe:
    return make_recipe(preset(pairs).settings)


def test_ten_thousand_pairs_get_the_papers_galician_settings():
    recipe = made(10_017)
    assert recipe.model == ModelSettings(
        encoder_layers=4, decoder_layers=4, heads=4, dropout=0.4, attention_dropout=0.4, ff_dropout=0.4
    )
    assert recipe.training == TrainingSettings(epoch_batches=100, min_learning_rate=5e-5, max_epochs=1000)
    assert recipe.subwords.operations == 3000


@pytest.mark.parametrize(
    ("pairs", "epoch"), [(50_000, 600), (133_166, 1500), (214_000, 2000), (5_000_000, 2000)]
)
def test_many_pairs_get_the_papers_base_settings(pairs, epoch):
    recipe = made(pairs)
    assert recipe.model == ModelSettings()
    assert recipe.training == TrainingSettings(epoch_batches=epoch)
    assert recipe.subwords.operations == 8000


def test_a_thousand_pairs_get_a_small_model_and_few_subwords():
    recipe = made(1000)
    assert (recipe.model.d_model, recipe.model.encoder_layers, recipe.model.decoder_layers) == (256, 3, 3)
    assert recipe.model.dropout == recipe.model.attention_dropout == recipe.model.ff_dropout == 0.4
    assert recipe.subwords.operations == 1000


def test_more_pairs_never_get_a_smaller_model():
    sizes = [made(pairs) for pairs in (1, 1999, 2000, 6999, 7000, 19_999, 20_000, 49_999, 50_000, 10**6)]
    shapes = [
        (r.model.d_model, r.model.encoder_layers, -r.model.dropout, r.subwords.operations) for r in sizes
    ]
    for smaller, larger in pairwise(shapes):
        assert all(a <= b for a, b in zip(smaller, larger, strict=True))
    assert len(set(shapes)) == 5


@pytest.mark.parametrize("pairs", [1, 1000, 3000, 10_017, 30_000, 133_166])
def test_reasons_are_sentences_that_speak_of_what_was_chosen(pairs):
    settings, reasons = preset(pairs)
    assert all(reason[-1] == "." and (reason[0].isupper() or reason[0].isdigit()) for reason in reasons)
    text = " ".join(reasons)
    layers = settings["model"]["encoder_layers"]
    assert f"{layers}+{layers} layers" in text
    assert f"{settings['subwords']['operations']:,} BPE operations" in text
    assert f"ropout {settings['model']['dropout']}" in text
    assert f"every {settings['training']['epoch_batches']:,} batches" in text
    assert f"{pairs:,} pair" in text


def test_no_pairs_no_preset():
    with pytest.raises(UserError, match="There are 0 pairs"):
        preset(0)


@pytest.mark.parametrize(
    ("pairs", "size"),
    [(4, 1), (100, 25), (400, 100), (1000, 100), (10_017, 500), (20_000, 1000), (10**6, 1000)],
)
def test_dev_texts_grow_with_the_corpus(pairs, size):
    assert dev_size(pairs) == size


def test_too_few_pairs_to_split():
    with pytest.raises(UserError, match="3 pairs are too few"):
        dev_size(3)
