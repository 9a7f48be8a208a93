"""Recipes on disk: what they mean, what is wrong with them, and back again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qknorm.config import (
    DataSettings,
    DecodingSettings,
    ModelSettings,
    Recipe,
    SubwordSettings,
    TrainingSettings,
    dump_recipe,
    load_recipe,
    make_recipe,
)
from qknorm.errors import UserError


@pytest.fixture
def recipe(tmp_path: Path):
    """Writes a recipe and gives its path."""

    def write(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8", newline="\n")
        return path

    return write


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(path, overrides)
    return str(caught.value).replace(f"{path} ", "")


def test_an_empty_recipe_and_empty_sections_are_the_defaults(recipe):
    assert load_recipe(recipe("")) == Recipe()
    assert load_recipe(recipe("# nothing\n")) == Recipe()
    assert load_recipe(recipe("training:\n  # seed: 3\nmodel:\n")) == Recipe()


def test_values_reach_their_settings(recipe):
    path = recipe(
        "name: one\nmodel:\n  heads: 4\n  qk_norm: null\ntraining:\n  learning_rate: 3e-4\n  clip: 1\n"
    )
    loaded = load_recipe(path)
    assert loaded.name == "one"
    assert loaded.model == ModelSettings(heads=4, qk_norm=None)
    assert loaded.training == TrainingSettings(learning_rate=0.0003, clip=1.0)
    assert isinstance(loaded.training.clip, float)


def test_norwegian_is_not_false(recipe):
    loaded = load_recipe(recipe("data: {source: no, target: on}\n"))
    assert (loaded.data.source, loaded.data.target) == ("no", "on")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training:\n  sedd: 3\n", "line 2: training.sedd is not a setting; the nearest is training.seed."),
        ("seed: 3\n", "line 1: seed is not a setting; the nearest is training.seed."),
        ("\ntrainig:\n  seed: 1\n", "line 2: trainig is not a setting; the nearest is training."),
        ("model:\n  hads: 3\n", "line 2: model.hads is not a setting; the nearest is model.heads."),
        (
            "model:\n  label_smothing: 0\n",
            "line 2: model.label_smothing is not a setting; the nearest is training.label_smoothing.",
        ),
        ("modl.dropout: 3\n", "line 1: modl.dropout is not a setting; the nearest is model.dropout."),
        (
            "zzz: 3\n",
            "line 1: zzz is not a setting; there are name, data, subwords, model, training, decoding.",
        ),
        ("subwords:\n  kinds: 3\n", "line 2: subwords.kinds is not a setting; the nearest is subwords.kind."),
        (
            "subwords:\n  zzz: 3\n",
            "line 2: subwords.zzz is not a setting; "
            "in subwords there are kind, operations, sample_power, dropout, dropout_on, dropout_from, "
            "dropout_passes.",
        ),
        (
            "training:\n  seed: 1\n  clip: 1\n  seed: 2\n",
            "line 4: training.seed is there already, on line 2; keep one of the two.",
        ),
        ("name: a\nname: b\n", "line 2: name is there already, on line 1; keep one of the two."),
        (
            "model:\n  qk_norm: l3\n",
            'line 2: model.qk_norm must be one of l2, rms, layer, rms_across_heads or null, not "l3".',
        ),
        (
            "training:\n  schedule: step\n",
            'line 2: training.schedule must be one of plateau, inverse_sqrt, cosine, linear, not "step".',
        ),
        ("training:\n  seed: '3'\n", 'line 2: training.seed must be a whole number, not "3".'),
        ("training:\n  seed: true\n", "line 2: training.seed must be a whole number, not true."),
        ("training:\n  seed: 1.5\n", "line 2: training.seed must be a whole number, not 1.5."),
        ("training:\n  seed: 010\n", 'line 2: training.seed must be a whole number, not "010".'),
        ("training:\n  clip: 1e999\n", "line 2: training.clip must be a finite number, not Infinity."),
        (
            "training:\n  max_steps: x\n",
            'line 2: training.max_steps must be a whole number or null, not "x".',
        ),
        ("training:\n  validate_bleu: 1\n", "line 2: training.validate_bleu must be true or false, not 1."),
        ("model:\n  d_ff: true\n", "line 2: model.d_ff must be a whole number, not true."),
        ("model:\n  heads: 3\n", "line 2: model.heads must divide d_model: 512 is not a multiple of 3."),
        ("model:\n  dropout: 1\n", "line 2: model.dropout must be at least 0 and below 1, not 1.0."),
        ("name: 3\n", "line 1: name must be text, not 3."),
        ("name: a/b\n", 'line 1: name must be a name without slashes, not "a/b".'),
        ("data:\n  folder: 3\n", "line 2: data.folder must be text or null, not 3."),
        ("training: 3\n", "line 1: training must be a section with settings of its own, not 3."),
        ("model: x\n", 'line 1: model must be a section with settings of its own, not "x".'),
        ("training:\n  seed: [1]\n", "line 2: training.seed must not be a list."),
        ("training:\n  seed: {a: 1}\n", "line 2: training.seed must not be a section."),
        ("training: [1]\n", "line 1: training must not be a list."),
        ("[a]: 3\n", "line 1: a key must be a name, not a list or a section."),
        (
            "name: !!int a\n",
            "line 1: the value of name cannot be read; write it without the tag tag:yaml.org,2002:int.",
        ),
        ("name: !thing a\n", "line 1: the value of name cannot be read; write it without the tag !thing."),
        (
            "training:\n  backward: 0.5\nmodel:\n  languages: 0\n",
            "line 4: model.languages must be at least 2 where training.backward is above 0.",
        ),
        (
            "training:\n  warmup_steps: 0\n",
            "line 1: training.learning_rate must be given where warmup_steps is 0.",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_remedy(recipe, text, expected):
    assert complaint(recipe(text)) == expected


def test_all_mistakes_at_once_in_the_order_of_the_file(recipe):
    text = "training:\n  decay: 2\nmodel:\n  norm: x\n  dropuot: 0.1\nsubwords:\n  operations: -1\n"
    assert complaint(recipe(text)).split("\n") == [
        "line 2: training.decay must be below 1, not 2.",
        'line 4: model.norm must be one of layer, scale, rms, none, not "x".',
        "line 5: model.dropuot is not a setting; the nearest is model.dropout.",
        "line 7: subwords.operations must be at least 0, not -1.",
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [\n", "line 2 is not YAML"),
        (b"name: \xff\n", "is not plain text in UTF-8"),
        (b"- a\n", "is not a recipe"),
        (b"text\n", "is not a recipe"),
        (b"name: a\n---\nname: b\n", "line 2 is not YAML"),
        (b"name: " + b"[" * 2000, "nested too deeply"),
        (b'name: "\\ud800"\n', "cannot be read"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path, content, expected):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    assert expected in complaint(path)


def test_missing_recipes_are_named(tmp_path):
    with pytest.raises(UserError, match="There is no recipe .*none.yaml; check the name"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        load_recipe(tmp_path)


def test_overrides_win_and_are_yaml_values(recipe):
    path = recipe("training:\n  seed: 1\n")
    loaded = load_recipe(
        path,
        [
            "training.seed=3",
            "model.qk_norm=null",
            "training.learning_rate=1e-3",
            "name=a=b",
            "data.source=no",
        ],
    )
    assert loaded.training.seed == 3
    assert loaded.model.qk_norm is None
    assert loaded.training.learning_rate == 0.001
    assert loaded.name == "a=b"
    assert loaded.data.source == "no"
    assert load_recipe(path, ["training.seed=3", "training.seed=4"]).training.seed == 4
    assert load_recipe(recipe("training:\n"), ["training.seed=5"]).training.seed == 5


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.seed=x", '--set training.seed: training.seed must be a whole number, not "x".'),
        ("training.seed", "--set training.seed has no value; write it as --set training.seed=3."),
        ("training=3", "--set training: training is a section; name a setting in it, such as training.seed."),
        (
            "trainig.seed=3",
            "--set trainig.seed: trainig.seed is not a setting; the nearest is training.seed.",
        ),
        (
            "training.sede=3",
            "--set training.sede: training.sede is not a setting; the nearest is training.seed.",
        ),
        ("training.seed=[1]", "--set training.seed: training.seed must not be a list."),
        ("name=[a", "--set name is not YAML: expected ',' or ']', but got '<stream end>'."),
        ("model.heads=3", "--set model.heads: model.heads must divide d_model: 512 is not a multiple of 3."),
    ],
)
def test_mistakes_in_overrides_are_named(recipe, override, expected):
    assert complaint(recipe("name: a\n"), override) == expected


def test_an_override_does_not_hide_a_broken_section(recipe):
    assert "line 1: training must be a section" in complaint(recipe("training: 3\n"), "training.seed=1")


def test_paths_are_relative_to_the_recipe_and_overridden_ones_to_here(recipe, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    path = recipe("data:\n  train_source: ../a.gl\n  train_target: /b.en\n")
    monkeypatch.chdir(here)
    for written in (path, Path("../recipe.yaml")):
        loaded = load_recipe(written, ["data.test_source=t.gl", "data.test_target=~/t.en"]).data
        assert loaded.train_source == tmp_path.parent / "a.gl"
        assert loaded.train_target == Path("/b.en")
        assert loaded.test_source == here / "t.gl"
        assert loaded.test_target == Path(os.path.expanduser("~/t.en"))


def test_make_recipe_takes_paths_and_names_mistakes():
    made = make_recipe({"data": {"train_source": Path("a"), "train_target": "b"}}, ["training.seed=2"])
    assert made.data.train_source == Path.cwd() / "a"
    assert made.training.seed == 2
    with pytest.raises(UserError, match="^training.seed must be a whole number, not null.$"):
        make_recipe({"training": {"seed": None}})


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
names = words.filter(lambda text: not set(text) & set("/\\\0"))
paths = names.map(lambda text: Path("/data", text))
chances = st.floats(0, 1, exclude_max=True)
recipes = st.builds(
    Recipe,
    name=names
    | st.sampled_from(["1e-4", "null", "~", "true", "no", "0x1", "1:30", "3", ".5", "=", "<<", "- a"]),
    data=st.builds(
        DataSettings,
        source=st.none() | words,
        train_source=paths,
        train_target=paths,
        dev_size=st.none() | st.integers(1),
    ),
    subwords=st.builds(SubwordSettings, operations=st.integers(0, 10**6), dropout=chances),
    model=st.builds(
        ModelSettings,
        dropout=chances,
        qk_norm=st.sampled_from([None, "l2", "rms"]),
        length=st.none() | st.integers(2, 99) | st.floats(2, 99),
        qk_scale_learnable=st.sampled_from([None, True, False]),
    ),
    training=st.builds(
        TrainingSettings,
        seed=st.integers(0, 2**63 - 1),
        epsilon=st.floats(0, exclude_min=True, allow_infinity=False),
        schedule=st.sampled_from(["plateau", "cosine"]),
    ),
    decoding=st.builds(DecodingSettings, length_penalty=st.floats(0, 9)),
)


@given(recipes)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_dumped_recipe_loads_back_equal(tmp_path, made):
    path = tmp_path / "dumped.yaml"
    path.write_bytes(dump_recipe(made).encode())
    loaded = load_recipe(path)
    assert loaded == made
    assert dump_recipe(loaded) == dump_recipe(made)


def test_the_layers_do_without_the_settings():
    code = (
        "import sys, qknorm, qknorm.nn, qknorm.model\n"
        "assert not {'pydantic', 'yaml', 'qknorm.config'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
