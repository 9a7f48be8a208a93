"""Presets by corpus size."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from qknorm.config import (
    ModelSettings,
    Recipe,
    TrainingSettings,
    dev_size,
    load_recipe,
    make_recipe,
    preset,
)
from qknorm.errors import UserError

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def made(pairs: int, gpu: bool = True) -> Recipe:
    return made_of(pairs, 98 * pairs, gpu)


def made_of(pairs: int, characters: int, gpu: bool) -> Recipe:
    return make_recipe(preset(pairs, characters, gpu).settings)


def test_ten_thousand_pairs_get_the_settings_of_the_fast_galician_recipe():
    """But for what is beyond the paper, for GPUs or tokenised text alone, and for numbers of passes."""
    recipe, fast = made(10_017), load_recipe(RECIPES / "fast/gl-en.yaml")
    assert recipe.model == replace(fast.model, rotary=True, attention_dropout=0.1)
    counted = {"dropout_passes", "concatenate_passes", "backward_passes"}
    for ours, theirs in ((recipe.subwords, fast.subwords), (recipe.training, fast.training)):
        apart = {"kind", "batching", *counted}
        assert ours.model_dump(exclude=apart) == theirs.model_dump(exclude=apart)
        for key, passes in ours.model_dump(include=counted).items():
            assert passes == pytest.approx(getattr(theirs, key), rel=0.1), key


@pytest.mark.parametrize("pairs", [500, 5_000, 10_000, 30_000, 100_000])
def test_a_gpu_gets_batches_of_mixed_lengths(pairs):
    assert made(pairs).training.batching == "mixed"
    assert made(pairs, gpu=False).training.batching == "by_length"
    assert any(
        reason.startswith("Batches are of sentences") for reason in preset(pairs, 98 * pairs, True).reasons
    )


@pytest.mark.parametrize("pairs", [1, 500, 5_000, 10_017, 30_000, 49_999])
def test_without_a_gpu_the_model_is_small_and_the_end_known(pairs):
    recipe = made(pairs, gpu=False)
    assert (recipe.model.d_model, recipe.model.encoder_layers, recipe.model.rotary) == (256, 3, True)
    training = recipe.training
    assert training.schedule == "linear"
    assert training.max_steps == pytest.approx(8 * training.epoch_batches, abs=8)
    assert training.warmup_steps < training.max_steps
    assert 1 / (1 - training.ema_decay) == pytest.approx(training.max_steps / 16, rel=0.03)
    a_pass = 98 * pairs / 3 / 1024
    assert training.max_steps == pytest.approx(max(500, min(8000, 80 * a_pass)), abs=50)
    assert recipe.subwords.dropout_passes == pytest.approx(0.8 * training.max_steps / a_pass, abs=1)


def test_without_a_gpu_more_pairs_get_the_paper_base_model_all_the_same():
    on_cpu, on_gpu = made(50_000, gpu=False), made(50_000)
    batches = on_gpu.training.model_copy(update={"batching": "by_length"})
    assert on_cpu == on_gpu.model_copy(update={"training": batches})
    assert any("days" in reason for reason in preset(50_000, 10**6).reasons)
    assert not any("days" in reason for reason in preset(50_000, 10**6, gpu=True).reasons)


def test_little_text_is_read_with_rotary_positions():
    """As measured on 4,000 and 29,000 pairs; what has the paper's base model has it whole."""
    assert [made(pairs).model.rotary for pairs in (500, 6_999, 10_000, 49_999)] == [True] * 4
    assert not made(50_000).model.rotary


def test_little_texts_attention_is_dropped_less_than_all_else():
    """As measured on 4,000 and 10,017 pairs."""
    for pairs in (500, 6_999, 10_000, 19_999):
        for gpu in (False, True):
            model = made(pairs, gpu).model
            assert model.attention_dropout == 0.1 < model.dropout
    assert made(20_000).model.attention_dropout == made(20_000).model.dropout
    assert made(49_999, gpu=False).model.attention_dropout == 0.1 < made(49_999, gpu=False).model.dropout


def test_dev_decides_the_length_penalty():
    assert all(made(pairs).decoding.length_penalty_from_dev for pairs in (500, 10_000, 30_000, 100_000))


def test_passes_over_ten_thousand_pairs_are_counted_by_the_length_of_their_sentences():
    short, long = (make_recipe(preset(10_000, n * 10_000, gpu=True).settings) for n in (30, 120))
    assert short.training.max_steps == long.training.max_steps == 12_000
    assert short.subwords.dropout_passes == pytest.approx(4 * long.subwords.dropout_passes, rel=0.02)
    assert short.training.backward_passes == pytest.approx(4 * long.training.backward_passes, rel=0.02)
    assert make_recipe(preset(10_000, 10**9, gpu=True).settings).training.backward_passes == 1


@pytest.mark.parametrize(
    ("pairs", "epoch"), [(50_000, 600), (133_166, 1500), (214_000, 2000), (5_000_000, 2000)]
)
def test_many_pairs_get_the_papers_base_settings(pairs, epoch):
    recipe = made(pairs)
    assert recipe.model == ModelSettings()
    assert recipe.training == TrainingSettings(epoch_batches=epoch, batching="mixed")
    assert recipe.subwords.operations == 8000


def test_a_thousand_pairs_get_a_small_model_and_few_subwords():
    recipe = made(1000)
    assert (recipe.model.d_model, recipe.model.encoder_layers, recipe.model.decoder_layers) == (256, 3, 3)
    assert recipe.model.dropout == recipe.model.ff_dropout == 0.4
    assert recipe.subwords.operations == 1000


@pytest.mark.parametrize(("gpu", "different"), [(True, 5), (False, 4)])
def test_more_pairs_never_get_a_smaller_model(gpu, different):
    pairs = (1, 1999, 2000, 6999, 7000, 19_999, 20_000, 49_999)
    sizes = [made(each, gpu) for each in (*pairs, *((50_000, 10**6) if gpu else ()))]
    shapes = [
        (r.model.d_model, r.model.encoder_layers, -r.model.dropout, r.subwords.operations) for r in sizes
    ]
    for smaller, larger in pairwise(shapes):
        assert all(a <= b for a, b in zip(smaller, larger, strict=True))
    assert len(set(shapes)) == different


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("pairs", [1, 1000, 3000, 10_017, 30_000, 133_166])
def test_reasons_are_sentences_that_speak_of_what_was_chosen(pairs, gpu):
    settings, reasons = preset(pairs, 98 * pairs, gpu)
    assert all(reason[-1] == "." and (reason[0].isupper() or reason[0].isdigit()) for reason in reasons)
    text = " ".join(reasons)
    layers = settings["model"]["encoder_layers"]
    assert f"{layers}+{layers} layers" in text
    assert f"{settings['subwords']['operations']:,} BPE operations" in text
    assert f"ropout {settings['model']['dropout']}" in text
    assert f"every {settings['training']['epoch_batches']:,} batches" in text
    assert f"{pairs:,} pair" in text


@pytest.mark.parametrize("gpu", [False, True])
def test_blank_lines_alone_get_settings_too(gpu):
    """Reading the text refuses them, line by line."""
    assert made_of(8000, 0, gpu).training.max_steps > 0


def test_no_pairs_no_preset():
    with pytest.raises(UserError, match="There are 0 pairs"):
        preset(0, 0)


@pytest.mark.parametrize(
    ("pairs", "size"),
    [(4, 1), (100, 25), (400, 100), (1000, 100), (10_017, 500), (20_000, 1000), (10**6, 1000)],
)
def test_dev_texts_grow_with_the_corpus(pairs, size):
    assert dev_size(pairs) == size


def test_too_few_pairs_to_split():
    with pytest.raises(UserError, match="3 pairs are too few"):
        dev_size(3)
