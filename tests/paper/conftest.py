"""A small folder of results, made once for all tests of this room."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qknorm.paper import reproduce
from support.paper import wish, write_paper_corpus


@pytest.fixture(scope="session", autouse=True)
def quick(tmp_path_factory: pytest.TempPathFactory):
    """One cache for all, few shufflings in the tests of twelve sentences, a short sentence to draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKNORM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("qknorm.scoring.comparison.TRIALS", 50)
        patch.setattr("qknorm.paper.figure.SENTENCE", "ano bico casa")
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 2 of en-vi, both rows with two seeds; not to be changed."""
    home = tmp_path_factory.mktemp("home")
    write_paper_corpus(home / "data", "iwslt15-en-vi")
    reproduce(wish(home, "table2", ["en-vi"], seeds=[1, 2]))
    return home


@pytest.fixture
def home(finished: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return shutil.copytree(finished, tmp_path / "home")
