"""Many lines encoded at once are what they are one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.data import encoder
from qknorm.data.encoder import Encoder
from qknorm.data.sentences import SIDES
from qknorm.data.subwords import Subwords

SOURCE = ["the low window", "lower than the lowest", "a window 12 , 34"]
TARGET = ["das fenster", "tiefer als das tiefste", "ein fenster 12 , 34"]
LEARNT = {kind: Subwords.learn(SOURCE, TARGET, kind=kind, operations=30) for kind in ("words", "raw")}

few_lines = st.lists(
    st.lists(st.sampled_from([*"the low das 12☃", " ", "\t", "\r", "\u2028", "\xa0"])).map("".join)
)


@settings(deadline=None)
@given(few_lines, st.sampled_from(["words", "raw"]), st.sampled_from(SIDES), st.integers(1, 9))
def test_chunks_are_what_lines_are(lines, kind, side, size):
    subwords = LEARNT[kind]
    together, words = Encoder(subwords, side), 0
    found = []
    for start in range(0, len(lines), size):
        sentences, counted = together.encode(lines[start : start + size])
        assert sentences.ids.dtype == subwords.dtype and sentences.offsets.dtype == np.int64
        found += [sentences[i].tolist() for i in range(len(sentences))]
        words += counted
    assert found == subwords.encode(lines, side)
    assert words == sum(len(subwords.words(line)) for line in lines)


@pytest.mark.parametrize("kind", ["words", "raw"])
def test_it_forgets_words_when_they_are_too_many(kind, monkeypatch):
    monkeypatch.setattr(encoder, "_KNOWN_WORDS", 3)
    subwords, one = LEARNT[kind], Encoder(LEARNT[kind], "source")
    for lines in (SOURCE, SOURCE[::-1], [], SOURCE[:1]):
        sentences, _ = one.encode(lines)
        assert [sentences[i].tolist() for i in range(len(lines))] == subwords.encode(lines, "source")
        assert len(one._rows) < 20


def test_words_known_from_learning_are_what_they_would_be_made(tmp_path):
    LEARNT["words"].save(tmp_path / "subwords")
    loaded = Subwords.load(tmp_path / "subwords")
    for side, lines in zip(SIDES, (SOURCE, TARGET), strict=True):
        words = {word for line in lines for word in loaded.words(line)}
        known = LEARNT["words"]._words[side]
        assert words <= known.keys()
        assert {word: loaded.ids_of_word(word, side) for word in words} == {w: known[w] for w in words}
