"""What differs between recipes, and their hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from qknorm.config import Change, Recipe, changed_settings, make_recipe, recipe_hash, settings


def test_equal_recipes_have_no_changes():
    assert changed_settings(Recipe(), make_recipe({})) == []


def test_changes_are_listed_in_order_with_both_values():
    new = make_recipe({"training": {"max_epochs": 9, "seed": 2}, "model": {"qk_norm": None}})
    assert changed_settings(Recipe(), new) == [
        Change("model.qk_norm", "l2", None, True),
        Change("training.seed", 1, 2, True),
        Change("training.max_epochs", 200, 9, False),
    ]


@pytest.mark.parametrize(
    ("settings_", "breaking"),
    [
        ({"name": "b"}, False),
        ({"data": {"train_source": "a", "train_target": "b"}}, True),
        ({"data": {"dev_source": "a", "dev_target": "b"}}, True),
        ({"data": {"test_source": "a", "test_target": "b"}}, False),
        ({"data": {"folder": "a", "source": "gl", "target": "en"}}, True),
        ({"subwords": {"operations": 1}}, True),
        ({"model": {"d_ff": 4}}, True),
        ({"model": {"dropout": 0.1}}, True),
        ({"training": {"batch_tokens": 1}}, True),
        ({"training": {"accumulate": 2}}, True),
        ({"training": {"epoch_batches": 1}}, True),
        ({"training": {"optimizer": "adamw"}}, True),
        ({"training": {"learning_rate": 1e-3}}, True),
        ({"training": {"schedule": "linear"}}, True),
        ({"training": {"final_rate": 0.1}}, True),
        ({"training": {"average": "ema"}}, True),
        ({"training": {"max_steps": 7}}, False),
        ({"training": {"patience": 7}}, False),
        ({"training": {"decay": 0.5}}, False),
        ({"training": {"min_learning_rate": 0.0}}, False),
        ({"training": {"stop_after": 7}}, False),
        ({"training": {"max_bad_steps": 7}}, False),
        ({"training": {"validate_bleu": False}}, False),
        ({"training": {"precision": "float32"}}, False),
        ({"decoding": {"beam": 7, "length_penalty": 1, "max_extra": 1, "batch_tokens": 1}}, False),
    ],
)
def test_which_changes_break_a_run(settings_, breaking):
    changes = changed_settings(Recipe(), make_recipe(settings_))
    assert changes
    assert {change.breaking for change in changes} == {breaking}


def test_the_hash_is_of_the_experiment_not_of_where_it_lies():
    recipe = make_recipe({"data": {"train_source": Path("a"), "train_target": Path("b"), "source": "gl"}})
    moved = make_recipe(
        {"name": "other", "data": {"train_source": "/x/a", "train_target": "/x/b", "source": "gl"}}
    )
    assert recipe_hash(recipe) == recipe_hash(moved)
    assert recipe_hash(recipe) != recipe_hash(make_recipe({}))
    assert recipe_hash(make_recipe({"training": {"clip": 1}})) == recipe_hash(Recipe())


def test_every_other_setting_counts_in_the_hash():
    plain = recipe_hash(Recipe())
    hashes = {plain}
    counted = [key for key, setting in settings().items() if key != "name" and not setting.is_path]
    for key in counted:
        section, name = key.split(".")
        hashes.add(recipe_hash(make_recipe({section: {name: _other(key)}})))
    assert len(hashes) == len(counted) + 1


def _other(key: str) -> object:
    """A value that is not the default."""
    setting = settings()[key]
    if setting.choices:
        return next(choice for choice in setting.choices if choice != setting.default)
    if isinstance(setting.default, bool):
        return not setting.default
    if setting.default is None:
        given = {
            "data.source": "gl",
            "data.target": "gl",
            "data.corpus": "x",
            "model.qk_scale_learnable": False,
        }
        return given.get(key, 3)
    return setting.default * 2 or 1 if isinstance(setting.default, int) else setting.default / 2 or 0.25


def test_the_hash_does_not_change_between_versions_unnoticed():
    """A setting added or renamed changes it, and so the signature of published numbers: only on purpose."""
    assert recipe_hash(Recipe()) == "4b75c2d0c96242c28ef45fff05814eab1dbd0052bd70837f633d552e03cae964"
