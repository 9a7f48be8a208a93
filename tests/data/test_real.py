"""Real corpora: the paper's figures come out of our subwords and batches."""

import os
from pathlib import Path

import pytest

from qknorm.config import load_recipe
from qknorm.data import Batches, EncodedCorpus, Subwords, check_corpus, text
from qknorm.run import build_model

RECIPES = Path(__file__).parents[2] / "recipes"

pytestmark = pytest.mark.data


class Real:
    """A corpus under the folder that QKNORM_DATA names, its subwords and its encoded train set."""

    def __init__(self, name: str, kind: str, folder: Path) -> None:
        root = os.environ.get("QKNORM_DATA")
        if not root:
            pytest.skip("needs real corpora: set QKNORM_DATA to a folder that has them")
        self.home = Path(root) / name
        if not self.home.is_dir():
            pytest.skip(f"QKNORM_DATA has no {name}")
        *_, self.source, self.target = name.split("-")
        self.subwords = Subwords.learn(*self.files("train"), kind=kind)  # type: ignore[arg-type]
        self.train = EncodedCorpus.open(*self.files("train"), self.subwords, folder)

    def files(self, split: str) -> tuple[Path, Path]:
        return self.home / f"{split}.{self.source}.gz", self.home / f"{split}.{self.target}.gz"


@pytest.fixture(scope="module")
def envi(tmp_path_factory: pytest.TempPathFactory) -> Real:
    return Real("iwslt15-en-vi", "words", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def glen(tmp_path_factory: pytest.TempPathFactory) -> Real:
    return Real("ted-gl-en", "words", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def deen(tmp_path_factory: pytest.TempPathFactory) -> Real:
    return Real("multi30k-de-en", "raw", tmp_path_factory.mktemp("cache"))


def test_en_vi_has_about_8400_subwords_and_the_papers_length(envi: Real) -> None:
    """L counts subwords alone: with EOS the 97.5th percentile would be one more."""
    assert 8300 <= envi.subwords.size <= 8450
    assert envi.train.length_percentile(97.5) == pytest.approx(73, abs=1)
    assert envi.train.facts.examples == 133_166


def test_gl_en_has_the_papers_parameters_and_length_with_its_recipe(glen: Real, tmp_path: Path) -> None:
    """Table 1: 31,051,880 parameters, which are 3,164 subwords of 513 each and the rest, and L = 79."""
    recipe = load_recipe(RECIPES / "paper" / "gl-en.yaml", ["model.length=79"])
    operations = recipe.subwords.operations
    subwords = Subwords.learn(*glen.files("train"), kind="words", operations=operations)
    train = EncodedCorpus.open(*glen.files("train"), subwords, tmp_path)
    assert train.length_percentile(97.5) == 79
    parameters = sum(p.numel() for p in build_model(recipe, subwords).parameters())
    assert parameters - 31_051_880 == 513 * (subwords.size - 3164)
    assert abs(subwords.size - 3164) <= 5


def test_en_vi_batches_are_full(envi: Real) -> None:
    batches = Batches(envi.train, 4096, seed=1)
    assert batches.dropped == 0
    assert batches.fullness().both >= 0.98


def test_gl_en_batches_are_full(glen: Real) -> None:
    """With 10 k pairs only about one and a half batches have sentences of the same length."""
    assert Batches(glen.train, 4096, seed=1).fullness().both >= 0.94


def test_words_come_back_and_few_are_unknown(envi: Real, glen: Real) -> None:
    for real in (envi, glen):
        for side, file in zip(("source", "target"), real.files("test"), strict=True):
            lines = list(text.lines(file))
            assert real.subwords.unk_rate(lines, side) < 0.001  # type: ignore[arg-type]
            ids = real.subwords.encode(lines, side)  # type: ignore[arg-type]
            decoded = real.subwords.decode(ids)
            assert sum(a == b for a, b in zip(decoded, lines, strict=True)) > 0.98 * len(lines)


def test_raw_text_comes_back_exactly(deen: Real) -> None:
    for split in ("train", "test"):
        for side, file in zip(("source", "target"), deen.files(split), strict=True):
            lines = list(text.lines(file))
            assert deen.subwords.decode(deen.subwords.encode(lines, side)) == lines  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["envi", "glen", "deen"])
def test_the_corpora_are_in_order(name: str, request: pytest.FixtureRequest) -> None:
    real = request.getfixturevalue(name)
    report = check_corpus(real.files("train"), real.files("dev"), real.files("test"))
    assert report.errors == []
    assert report.counts["train"].usable == real.train.facts.examples
