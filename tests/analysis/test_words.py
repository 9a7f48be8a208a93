"""Words that differ, buckets by frequency and length, and intervals of scores."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.analysis.words import CHANGED, WRONG, by_frequency, by_length, count_words, marked
from qknorm.scoring import bleu, intervals


def test_marks():
    found = marked("the red cat sat", "words", "the cat sat down", "the red dog sat")
    assert found == [("the", 0), (" ", 0), ("red", WRONG), (" ", 0), ("cat", CHANGED), (" ", 0), ("sat", 0)]
    assert marked("in 1999, yes", "raw", "in 199, yes", None) == [
        ("in", 0),
        (" ", 0),
        ("1999", WRONG),
        (", yes", 0),
    ]
    assert marked("", "words", "a", None) == [] and marked("a", "raw", "", None) == [("a", WRONG)]


@settings(max_examples=60, deadline=None)
@given(*[st.text(alphabet="ab ,1<é\u05d0", max_size=12)] * 3)
def test_marked_pieces_are_the_text(text, reference, other):
    assert "".join(piece for piece, _ in marked(text, "raw", reference, other)).strip(" ") == text.strip(" ")
    words = " ".join(text.split())
    assert "".join(piece for piece, _ in marked(words, "words", reference, other)) == words
    assert all(not mark & WRONG for _, mark in marked(text, "raw", text, other))


def test_accuracy_by_frequency():
    training = count_words(["a a a b", "a a b"], "words")
    assert training == Counter(a=5, b=2)
    found = by_frequency(["a a c", "b"], ["a b", "b x"], "words", training)
    assert [(each.name, each.count) for each in found] == [("0", 1), ("2–4", 2), ("5–9", 1)]
    never, rare, frequent = (each.figures for each in found)
    assert never == {"f1": 0, "precision": 0, "recall": 0}  # x is wanted, c is said
    assert rare == {"f1": pytest.approx(2 / 3), "precision": 1, "recall": 0.5}
    assert frequent == {"f1": pytest.approx(2 / 3), "precision": 0.5, "recall": 1}


def test_scores_by_length():
    references = ["one two", "a b c d e f", "", "three"]
    found = by_length(["one two", "a b c d x y", "z", "three"], references, "words")
    assert [(each.name, each.count) for each in found] == [("1–4", 2), ("5–9", 1)]
    assert found[0].figures == {"bleu": pytest.approx(100), "chrf": pytest.approx(100)}
    assert 0 < found[1].figures["bleu"] < 100


def test_intervals_are_those_of_resampled_texts():
    rng = np.random.default_rng(0)
    references = [" ".join(rng.choice(list("abcde"), size=8)) for _ in range(12)]
    ours = [" ".join([*line.split()[:6], "x", "y"]) if i % 2 else line for i, line in enumerate(references)]
    low, high = intervals(ours, references, "words", samples=40, seed=5)["bleu_tokenized"]
    draws = np.random.default_rng(5).choice(12, size=(40, 12), replace=True)
    scores = [bleu([ours[i] for i in draw], [references[i] for i in draw], "words") for draw in draws]
    assert (low, high) == pytest.approx(tuple(np.quantile(scores, [0.025, 0.975])))
    assert low < bleu(ours, references, "words") < high
