"""The figure of the paper's four heads."""

import numpy as np
import pytest

from qknorm.analysis import pair_attention
from qknorm.paper import figure
from qknorm.progress import Progress
from qknorm.training import train
from support.tiny import tiny_recipe, write_corpus


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figure")
    corpus = write_corpus(folder / "corpus", train=60)
    recipe = tiny_recipe(corpus, "subwords.kind=raw", "subwords.operations=200")
    return train(recipe, folder / "run", device="cpu", progress=Progress(quiet=True), cache=folder).run


def of_subwords(run, sentence):
    (ids,) = run.subwords().encode([sentence], "source")
    return pair_attention(run.model(), run.subwords(), [ids], [[]])[0].encoder


def test_labels_are_words_where_subwords_are(run, monkeypatch):
    monkeypatch.setattr(figure, "SENTENCE", "ano casa gato")
    seen, wanted = figure.encoder_map(run), of_subwords(run, "ano casa gato")
    assert wanted.columns[:2] == ["▁ano", "▁casa"], "or this shows nothing"
    assert seen.rows == seen.columns == ["ano", "casa", "gato", "</s>"]
    np.testing.assert_array_equal(seen.weights, wanted.weights)


def test_marks_stay_where_words_are_cut(run, monkeypatch):
    monkeypatch.setattr(figure, "SENTENCE", "ano casagato")
    seen, wanted = figure.encoder_map(run), of_subwords(run, "ano casagato")
    assert len(wanted.columns) > 3, "or this shows nothing"
    assert seen.columns == wanted.columns
