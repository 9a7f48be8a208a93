"""The recipes that come with the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from qknorm.config import Recipe, changed_settings, load_recipe, reference

RECIPES = Path(__file__).parents[2] / "recipes"
EVERY = sorted(path.relative_to(RECIPES).as_posix() for path in RECIPES.rglob("*.yaml"))
PAIRS = {
    "en-vi": ("en", "vi", "iwslt15-en-vi", 1500),
    "ar-en": ("ar", "en", "ted-ar-en", 2000),
    "en-he": ("en", "he", "ted-he-en", 2000),
    "sk-en": ("sk", "en", "ted-sk-en", 600),
    "gl-en": ("gl", "en", "ted-gl-en", 100),
}


def test_all_recipes_are_there():
    paper = [f"paper/{pair}{twin}.yaml" for pair in PAIRS for twin in ("", "-baseline")]
    others = ["annotated/de-en.yaml", "demo.yaml", "demo-baseline.yaml", "reference.yaml"]
    assert sorted(EVERY) == sorted([*others, "fast/en-vi.yaml", "fast/gl-en.yaml", *paper])


@pytest.mark.parametrize("name", EVERY)
def test_every_recipe_loads(name):
    recipe = load_recipe(RECIPES / name)
    own = "run" if name == "reference.yaml" else name.removesuffix(".yaml").removeprefix("paper/")
    assert recipe.name == own.replace("/", "-")  # the run folder: no two recipes may share one


def test_the_reference_is_up_to_date_and_all_defaults():
    assert (RECIPES / "reference.yaml").read_bytes().decode() == reference()
    assert load_recipe(RECIPES / "reference.yaml") == Recipe()


@pytest.mark.parametrize("pair", PAIRS)
def test_the_papers_settings(pair):
    source, target, corpus, epoch_batches = PAIRS[pair]
    small = pair == "gl-en"
    recipe = load_recipe(RECIPES / "paper" / f"{pair}.yaml")
    assert (recipe.data.source, recipe.data.target, recipe.data.corpus) == (source, target, corpus)
    assert recipe.data.folder == RECIPES.parent / "data" / corpus

    assert recipe.subwords.kind == "words"
    assert recipe.subwords.operations == (3000 if small else 8000)
    assert recipe.subwords.sample_power == 0.5
    assert recipe.subwords.dropout == 0.0

    model = recipe.model
    assert (model.encoder_layers, model.decoder_layers) == ((4, 4) if small else (6, 6))
    assert (model.d_model, model.d_ff, model.heads) == (512, 2048, 4 if small else 8)
    assert (model.norm, model.norm_position, model.fix_norm) == ("layer", "pre", True)
    assert (model.qk_norm, model.qk_scale_per, model.qk_scale_learnable) == ("l2", "layer", None)
    assert (model.qk_scale_init, model.length, model.v_norm) == (None, None, False)
    assert model.dropout == model.attention_dropout == model.ff_dropout == (0.4 if small else 0.3)
    assert (model.word_dropout, model.languages, model.positions) == (0.1, 2, "sine")

    training = recipe.training
    assert (training.batch_tokens, training.accumulate) == (4096, 1)
    assert training.epoch_batches == epoch_batches
    assert (training.max_epochs, training.max_steps) == (1000 if small else 200, None)
    assert training.optimizer == "adam"
    assert (training.beta1, training.beta2, training.epsilon) == (0.9, 0.999, 1e-8)
    assert training.weight_decay == 0.0
    assert (training.schedule, training.decay, training.patience) == ("plateau", 0.8, 3)
    assert (training.learning_rate, training.warmup_steps) == (None, 8000)
    assert round(model.d_model**-0.5 * training.warmup_steps**-0.5, 6) == 4.94e-4
    assert training.min_learning_rate == (5e-5 if small else 1e-5)
    assert (training.clip, training.label_smoothing) == (1.0, 0.1)
    assert (training.average, training.stop_after, training.validate_bleu) == ("none", None, True)

    decoding = recipe.decoding
    assert (decoding.beam, decoding.length_penalty, decoding.max_extra) == (4, 0.6, 50)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_baseline_differs_from_its_twin_as_the_papers_does(pair):
    recipe = load_recipe(RECIPES / "paper" / f"{pair}.yaml")
    baseline = load_recipe(RECIPES / "paper" / f"{pair}-baseline.yaml")
    expected = {
        "name": f"{pair}-baseline",
        "model.norm": "scale",
        "model.qk_norm": None,
        "training.learning_rate": 3e-4,
        "training.warmup_steps": 0,
        "training.min_learning_rate": 5e-5,
    }
    if pair == "gl-en":  # both of its runs stop under the same rate
        del expected["training.min_learning_rate"]
    assert {change.key: change.new for change in changed_settings(recipe, baseline)} == expected


def test_the_fast_galician_model_is_the_papers_but_for_its_positions():
    paper, fast = (load_recipe(RECIPES / kind / "gl-en.yaml") for kind in ("paper", "fast"))
    changed = {
        change.key
        for change in changed_settings(paper, fast)
        if not change.key.startswith(("training.", "subwords.dropout"))
    }
    assert changed == {"name", "model.positions"}


def test_the_demos_differ_in_their_norms_alone():
    demo, baseline = (load_recipe(RECIPES / f"{name}.yaml") for name in ("demo", "demo-baseline"))
    assert demo.data.corpus == "phrasebook:en-gl"
    assert demo.data.folder == RECIPES.parent / "data" / "phrasebook-en-gl"
    assert [(change.key, change.old, change.new) for change in changed_settings(demo, baseline)] == [
        ("name", "demo", "demo-baseline"),
        ("model.norm", "layer", "scale"),
        ("model.qk_norm", "l2", None),
    ]
