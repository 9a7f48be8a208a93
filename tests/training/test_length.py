"""L, and with it where g starts, comes from the training sentences at the percentile that is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from qknorm.errors import UserError
from qknorm.nn import initial_scale
from qknorm.progress import Progress
from qknorm.run import build_model
from qknorm.training import prepare
from support.tiny import tiny_recipe, write_corpus


@pytest.fixture
def prepared(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    return lambda *overrides: prepare(
        tiny_recipe(corpus, *overrides), tmp_path / "split", Progress(quiet=True), cache=tmp_path / "cache"
    )


def test_the_percentile_decides_where_g_starts(prepared):
    lengths = None
    for percent in (50, 97.5, 100):
        found = prepared(f"model.length_percentile={percent}")
        train = found.encoded["train"]
        lengths = np.concatenate([train.source.lengths, train.target.lengths])
        length = found.recipe.model.length
        assert length == np.percentile(lengths, percent)
        g = build_model(found.recipe, found.subwords).encoder[0].self_attn.qk_scale
        assert g.item() == pytest.approx(initial_scale(length))
    assert lengths is not None and length == lengths.max() > np.percentile(lengths, 50)


def test_without_a_setting_it_is_the_papers(prepared):
    assert prepared().recipe.model == prepared("model.length_percentile=97.5").recipe.model


def test_a_given_length_stays(prepared):
    assert prepared("model.length=40", "model.length_percentile=50").recipe.model.length == 40


@pytest.mark.parametrize("percent", [0, 100.5])
def test_no_such_percentile(prepared, percent):
    with pytest.raises(UserError, match="model.length_percentile must be above 0 and at most 100"):
        prepared(f"model.length_percentile={percent}")
