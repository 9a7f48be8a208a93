"""Settings without effect are found."""

import pytest

from qknorm.config import Recipe, idle_settings, make_recipe, settings
from qknorm.config.idle import _DECIDED_BY


def test_defaults_are_never_idle():
    assert idle_settings(Recipe()) == []


def test_every_key_is_a_setting_and_every_value_one_it_may_have():
    for key, (by, values) in _DECIDED_BY.items():
        assert {key, by} <= settings().keys()
        choices = settings()[by].choices
        assert set(values) < set(choices) if choices else values == (settings()[by].default,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"subwords": {"dropout_passes": 3}},
            ["subwords.dropout_passes=3 has no effect, since subwords.dropout is 0.0."],
        ),
        ({"subwords": {"dropout_passes": 3, "dropout": 0.1}}, []),
        (
            {"training": {"momentum": 0.9, "schedule": "linear", "patience": 5}},
            [
                "training.momentum=0.9 has no effect, since training.optimizer is adam.",
                "training.patience=5 has no effect, since training.schedule is linear.",
            ],
        ),
        ({"training": {"momentum": 0.9, "optimizer": "muon"}}, []),
        ({"training": {"backward": 0.5, "backward_passes": 2}}, []),
    ],
)
def test_what_does_nothing_is_said_with_its_reason(given, said):
    assert idle_settings(make_recipe(given)) == said
