"""The declared rows: the paper's figures as it prints them, and recipes that differ as its models do."""

from __future__ import annotations

from pathlib import Path

import pytest

from qknorm.config import changed_settings
from qknorm.errors import UserError
from qknorm.paper.experiments import BASELINE, PAIRS, QKNORM, TARGETS
from qknorm.paper.plan import (
    KINDS,
    check_overrides,
    choose_targets,
    experiment,
    experiment_hash,
    find_text,
    recipes_folder,
)
from support.paper import write_paper_corpus

DATA = Path("data")


def figures(name):
    return [row.paper for row in TARGETS[name].rows]


def test_the_papers_figures():
    """As in its tables; Table 6 has the whole model of Table 2 before its five rows."""
    assert figures("table1") == [23.45, 31.34, 28.77, 31.16, 37.94]
    assert figures("table2") == [32.79, 33.24, 36.09, 36.75, 28.28, 28.96, 22.01, 24.21, 32.58, 33.23]
    assert figures("table3") == [32.41, 33.18, 36.09, 36.75, 28.28, 28.96, 22.01, 24.21, 32.58, 33.22]
    assert figures("table4") == [32.40, 33.16, 33.24, 32.42, 32.30]
    assert figures("table5") == [32.58, 32.89, 32.64, 33.13, 33.24, 32.64, 33.10]
    assert figures("table6") == [33.24, 24.53, 31.56, 32.63, 32.20, 32.34]
    assert figures("annotated") == [19.4, 24.33]


def test_the_papers_facts():
    """The other columns of its Table 1: examples, tokens, parameters, hours, L, GPU."""
    facts = {row.pair: tuple(row.facts.values()) for row in TARGETS["table1"].rows}
    assert facts == {
        "gl-en": (10_000, 370_000, 31_051_880, 6, 79, "T4"),
        "sk-en": (61_000, 2_320_000, 48_356_907, 11, 75, "T4"),
        "en-vi": (133_000, 5_990_000, 48_431_538, 19, 72, "T4"),
        "en-he": (212_000, 7_880_000, 48_401_538, 38, 72, "T4"),
        "ar-en": (214_000, 8_090_000, 48_499_512, 26, 75, "P100"),
    }
    assert list(TARGETS["table1"].rows[0].facts) == ["examples", "tokens", "parameters", "hours", "L", "gpu"]


def test_the_papers_mean_gain():
    """Its abstract: 0.928 BLEU on average, by Table 2."""
    paper = figures("table2")
    assert sum(paper[1::2]) - sum(paper[::2]) == pytest.approx(5 * 0.928)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_row_has_a_recipe_on_its_own_text(target, kind):
    for row in TARGETS[target].rows:
        recipe = experiment(row, kind, 7).recipe(DATA)
        assert recipe.training.seed == 7
        assert f"{recipe.data.source}-{recipe.data.target}" == row.pair
        assert recipe.data.corpus == PAIRS[row.pair].corpus
        assert recipe.data.folder == Path.cwd() / "data" / PAIRS[row.pair].corpus


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["table4", "table5", "table6", "beyond"])
def test_rows_differ_from_the_whole_model_in_what_they_say_alone(target, kind):
    rows = TARGETS[target].rows
    whole = {row.pair: experiment(row, kind, 1).recipe(DATA) for row in rows if row.system == QKNORM}
    for row in rows:
        base, recipe = whole[row.pair], experiment(row, kind, 1).recipe(DATA)
        changed = {change.key for change in changed_settings(base, recipe)} - {"name"}
        said = {change.partition("=")[0] for change in row.system.changes}
        if row.system.base == "qknorm":
            assert changed <= said
            assert changed or kind == "paper" or not said  # it has no BPE-dropout to leave out


def test_table_5_asks_for_the_papers_percentiles():
    asked = [
        experiment(row, "paper", 1).recipe(DATA).model.length_percentile for row in TARGETS["table5"].rows
    ]
    assert asked == [75, 90, 92.5, 95, 97.5, 99, 100]


@pytest.mark.parametrize("pair", ["en-vi", "gl-en", "sk-en"])
def test_a_fast_baseline_differs_in_its_norms_alone(pair):
    rows = [row for row in TARGETS["table2"].rows if row.pair == pair]
    both = {row.system: experiment(row, "fast", 1).recipe(DATA) for row in rows}
    changes = {c.key: c.new for c in changed_settings(both[QKNORM], both[BASELINE])}
    changes.pop("name")
    assert changes == {"model.norm": "scale", "model.qk_norm": None}


def test_the_plain_pair_differs_in_attention_alone():
    plain, normalised = (experiment(row, "fast", 1).recipe(DATA) for row in TARGETS["annotated"].rows)
    assert {c.key for c in changed_settings(plain, normalised)} == {"name", "model.qk_norm"}
    assert (plain.model.norm_position, plain.model.fix_norm, plain.training.max_epochs) == ("post", False, 10)


def test_names_tell_experiments_apart():
    row = TARGETS["table2"].rows[0]
    made = [
        experiment(row, "paper", 1),
        experiment(row, "fast", 1),
        experiment(row, "fast", 2),
        experiment(row, "fast", 2, ("model.heads=4",)),
        experiment(row, "fast", 2, ("model.heads=2",)),
    ]
    assert len({each.name for each in made}) == len(made)


def test_the_hash_is_of_settings_and_text_and_of_nothing_else(tmp_path):
    row = TARGETS["table2"].rows[1]
    write_paper_corpus(tmp_path / "here", "iwslt15-en-vi")
    write_paper_corpus(tmp_path / "there", "iwslt15-en-vi")
    write_paper_corpus(tmp_path / "other", "iwslt15-en-vi", seed=5)

    def key(folder, seed=1, kind="paper", overrides=()):
        recipe = experiment(row, kind, seed, overrides).recipe(tmp_path / folder)
        return experiment_hash(recipe, find_text(recipe))

    assert key("here") == key("there")
    renamed = experiment(row, "paper", 1).recipe(tmp_path / "here").model_copy(update={"name": "other"})
    assert key("here") == experiment_hash(renamed, find_text(renamed))
    others = [
        key("other"),
        key("here", seed=2),
        key("here", kind="fast"),
        key("here", overrides=("model.dropout=0.05",)),
        key("here", overrides=("decoding.beam=5",)),
    ]
    assert len({key("here"), *others}) == 6


@pytest.mark.parametrize("file", ["train.en", "train.vi", "dev.en", "dev.vi", "test.en", "test.vi"])
def test_every_file_of_the_text_counts(tmp_path, file):
    row = TARGETS["table2"].rows[1]
    folder = write_paper_corpus(tmp_path, "iwslt15-en-vi")
    recipe = experiment(row, "paper", 1).recipe(tmp_path)
    before = find_text(recipe)
    key, text = experiment_hash(recipe, before), before.text
    (folder / file).write_text((folder / file).read_text().replace("a", "o", 1))
    assert experiment_hash(recipe, find_text(recipe)) != key and find_text(recipe).text != text
    (folder / file).unlink()
    assert find_text(recipe) is None


def test_recipes_are_found_beside_the_source_or_in_the_package(monkeypatch, tmp_path):
    checkout = Path(__file__).parents[2]
    assert recipes_folder().samefile(checkout / "recipes")
    installed = tmp_path / "site-packages" / "qknorm"
    (installed / "recipes").mkdir(parents=True)
    monkeypatch.setattr("qknorm.paper.plan.__file__", str(installed / "paper" / "plan.py"))
    with pytest.raises(UserError, match="install it again"):
        recipes_folder()
    (installed / "recipes" / "paper").symlink_to(checkout / "recipes" / "paper")
    assert recipes_folder() == installed / "recipes"


def test_the_wheel_takes_the_recipes_along():
    settings = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[tool.hatch.build.targets.wheel.force-include]\n"recipes" = "qknorm/recipes"' in settings


@pytest.mark.parametrize(
    ("name", "pairs", "said"),
    [
        ("table7", [], '"table7" is not a target; choose one of table1, .* or all'),
        ("table2", ["en-fr"], '"en-fr" is not a pair of the paper; choose from en-vi'),
        ("table4", ["gl-en"], "table4 has no row of gl-en; its pairs are en-vi"),
    ],
)
def test_what_there_is_not(name, pairs, said):
    with pytest.raises(UserError, match=said):
        choose_targets(name, pairs)


def test_all_is_the_paper():
    names = [target.name for target in choose_targets("all", [])]
    assert names == [*(f"table{n}" for n in range(1, 7)), "figure1", "annotated"]
    assert [target.name for target in choose_targets("all", ["sk-en"])] == ["table1", "table2", "table3"]


@pytest.mark.parametrize(
    ("override", "option"),
    [("data.folder=x", "--data"), ("training.seed=2", "--seeds"), ("training.members=2", "the paper")],
)
def test_settings_that_have_options_of_their_own(override, option):
    with pytest.raises(UserError, match=option):
        check_overrides([override])
