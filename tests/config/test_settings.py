"""Ranges and rules of the settings, and where a run's text is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from qknorm.config import DataSettings, ModelSettings, Recipe, SplitPaths, make_recipe, settings
from qknorm.errors import UserError


def test_every_setting_is_documented_and_has_a_default():
    for setting in settings().values():
        assert setting.about.endswith("."), setting.key


def test_the_catalogue_knows_what_a_setting_may_be():
    known = settings()
    assert known["training.average"].choices == ("none", "ema", "last")
    assert known["model.qk_norm"].choices == ("l2", "rms", "layer", "rms_across_heads")
    assert known["model.qk_norm"].optional
    assert not known["training.seed"].optional
    assert [key for key, setting in known.items() if setting.is_path] == [
        "data.folder",
        *(f"data.{split}_{side}" for split in ("train", "dev", "test") for side in ("source", "target")),
    ]


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("subwords.operations", -1, "at least 0"),
        ("subwords.sample_power", 1.5, "at most 1"),
        ("subwords.dropout", 1, "below 1"),
        ("data.dev_size", 0, "at least 1 or null"),
        ("training.seed", -1, "at least 0"),
        ("training.seed", 2**63, "below 9.22337e+18"),
        ("training.batch_tokens", 0, "at least 1"),
        ("training.accumulate", 0, "at least 1"),
        ("training.epoch_batches", 0, "at least 1 or null"),
        ("training.max_epochs", 0, "at least 1"),
        ("training.max_steps", 0, "at least 1 or null"),
        ("training.beta1", 1, "below 1"),
        ("training.beta2", -0.1, "at least 0"),
        ("training.epsilon", 0, "above 0"),
        ("training.weight_decay", -1, "at least 0"),
        ("training.learning_rate", 0, "above 0 or null"),
        ("training.warmup_steps", -1, "at least 0"),
        ("training.decay", 0, "above 0"),
        ("training.decay", 1, "below 1"),
        ("training.patience", 0, "at least 1"),
        ("training.min_learning_rate", -1, "at least 0"),
        ("training.clip", -1, "at least 0"),
        ("training.label_smoothing", 1, "below 1"),
        ("training.ema_decay", 1, "below 1"),
        ("training.average_last", 0, "at least 1"),
        ("training.stop_after", 0, "at least 1 or null"),
        ("training.max_bad_steps", 0, "at least 1"),
        ("decoding.beam", 0, "at least 1"),
        ("decoding.length_penalty", -0.1, "at least 0"),
        ("decoding.max_extra", -1, "at least 0"),
        ("decoding.batch_tokens", 0, "at least 1"),
    ],
)
def test_values_out_of_range_are_refused(key, value, wanted):
    section, name = key.split(".")
    with pytest.raises(UserError) as caught:
        make_recipe({section: {name: value}})
    assert str(caught.value) == f"{key} must be {wanted}, not {value}."


def test_the_lowest_rate_is_not_above_the_highest():
    with pytest.raises(UserError, match="training.min_learning_rate must be at most learning_rate, 1e-06"):
        make_recipe({"training": {"learning_rate": 1e-6}})
    make_recipe({"training": {"learning_rate": 1e-6, "schedule": "linear"}})


def test_a_recipe_does_not_change_and_checks_what_python_gives_it():
    recipe = Recipe()
    with pytest.raises(ValidationError):
        recipe.name = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Recipe(seed=3)  # type: ignore[call-arg]
    assert isinstance(Recipe(model=ModelSettings(length=72)).model.length, float)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"train_source": "a"}, "data.train_source needs train_target: name both sides or neither."),
        ({"dev_target": "a"}, "data.dev_target needs dev_source: name both sides or neither."),
        (
            {"folder": "d", "source": "gl", "target": "en", "test_source": "a", "test_target": "b"},
            "data.test_source and folder exclude each other: name files or a folder.",
        ),
        (
            {"folder": "d", "source": "gl"},
            "data.folder needs target, the language code in the names of its files.",
        ),
        (
            {"folder": "d", "source": "gl", "target": "gl"},
            "data.target must not be the source language, 'gl', again.",
        ),
    ],
)
def test_data_settings_that_do_not_go_together(data, expected):
    with pytest.raises(UserError) as caught:
        make_recipe({"data": data})
    assert str(caught.value) == expected


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def test_a_folder_is_searched_for_plain_and_packed_files(tmp_path):
    data = DataSettings(folder=tmp_path, source="gl", target="en")
    touch(tmp_path, "train.gl", "train.en.gz", "test.gl.gz", "test.en.gz", "test.gl")
    assert data.paths() == SplitPaths(
        train=(tmp_path / "train.gl", tmp_path / "train.en.gz"),
        dev=None,
        test=(tmp_path / "test.gl", tmp_path / "test.en.gz"),
    )


def test_a_folder_without_its_files_is_named_with_the_remedy(tmp_path):
    def complaint(corpus: str | None) -> str:
        with pytest.raises(UserError) as caught:
            DataSettings(folder=tmp_path, source="gl", target="en", corpus=corpus).paths()
        return str(caught.value)

    assert complaint(None) == (
        f"{tmp_path} has no train.gl and train.en, plain or .gz; "
        "check data.folder, data.source and data.target."
    )
    touch(tmp_path, "train.gl")
    assert complaint("ted-gl-en") == (
        f"{tmp_path} has no train.en, plain or .gz; run `qknorm data get ted-gl-en --to {tmp_path}`."
    )
    touch(tmp_path, "train.en", "dev.en")
    assert f"{tmp_path} has no dev.gl, plain" in complaint(None)
    touch(tmp_path, "dev.gl")
    assert complaint("phrasebook:gl-en") == (
        f"{tmp_path} has no test.gl and test.en, plain or .gz; "
        f"run `qknorm data phrasebook --pair gl-en --to {tmp_path}`."
    )


def test_named_files_must_be_there(tmp_path):
    touch(tmp_path, "a", "b")
    data = DataSettings(train_source=tmp_path / "a", train_target=tmp_path / "b")
    assert data.paths() == SplitPaths((tmp_path / "a", tmp_path / "b"), None, None)
    more = data.model_copy(update={"dev_source": tmp_path / "c", "dev_target": tmp_path / "d"})
    with pytest.raises(UserError) as caught:
        more.paths()
    assert str(caught.value).split("\n") == [
        f"There is no file {tmp_path / 'c'}; check the recipe's data.",
        f"There is no file {tmp_path / 'd'}; check the recipe's data.",
    ]
    touch(tmp_path, "c", "d")
    assert more.paths().dev == (tmp_path / "c", tmp_path / "d")


def test_a_recipe_without_text_says_what_to_set():
    with pytest.raises(UserError, match="names no text to learn from; set data.folder"):
        DataSettings().paths()
    with pytest.raises(UserError, match="run `qknorm data get multi30k-de-en --to DIR` and set data.folder"):
        DataSettings(corpus="multi30k-de-en").paths()
