"""The scores against BLEU's formula written out here, and their special cases."""

import json
import logging
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.errors import UserError
from qknorm.scoring import bleu, detokenize, score

HYPOTHESES = ["a b c d e f", "the cat sat on a mat .", "we don &apos;t know , he said"]
REFERENCES = ["a b c d x f", "the cat sat on the mat .", "we do n &apos;t know , she said"]

few_words = st.lists(st.sampled_from(["a", "b", "c", "d,", "e."]), max_size=12).map(" ".join)


def multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    """BLEU as multi-bleu.perl prints it: one reference, n-grams to 4, 0 when any precision is 0."""
    correct, total = [0] * 4, [0] * 4
    ours = theirs = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        mine, right = hypothesis.split(), reference.split()
        ours, theirs = ours + len(mine), theirs + len(right)
        for n in range(1, 5):
            found = Counter(tuple(mine[i : i + n]) for i in range(len(mine) - n + 1))
            wanted = Counter(tuple(right[i : i + n]) for i in range(len(right) - n + 1))
            correct[n - 1] += sum((found & wanted).values())
            total[n - 1] += sum(found.values())
    if 0 in correct:
        return 0.0
    precision = math.exp(sum(math.log(c / t) for c, t in zip(correct, total, strict=True)) / 4)
    brevity = 1.0 if ours >= theirs else math.exp(1 - theirs / ours)
    return 100 * brevity * precision


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(few_words, few_words), min_size=1, max_size=6).filter(
        lambda pairs: any(reference for _, reference in pairs)
    )
)
def test_tokenised_bleu_is_multi_bleus(pairs):
    hypotheses, references = map(list, zip(*pairs, strict=True))
    assert bleu(hypotheses, references) == pytest.approx(multi_bleu(hypotheses, references), abs=1e-9)


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        (["", "a b c d e"], ["x y z w v", "a b c d f"]),  # an empty line shortens the output
        (["a b c"], ["a b c"]),  # perfect, but without a 4-gram
        (["a b c x d e f"], ["a b c y d e f"]),  # no 4-gram matches
        (["", ""], ["a b c d", "e"]),  # nothing translated
        (["a b c d e f g h"], ["a b c d"]),  # too long: no bonus, no penalty
        (["a a a a a a"], ["a a a a"]),  # counts are clipped
    ],
)
def test_special_cases_of_multi_bleu(hypotheses, references):
    expected = multi_bleu(hypotheses, references)
    assert bleu(hypotheses, references) == pytest.approx(expected, abs=1e-9)
    assert score(hypotheses, references)["bleu_tokenized"] == pytest.approx(expected, abs=1e-9)


def test_no_four_gram_match_is_zero_but_smoothed_for_raw_text():
    hypotheses, references = ["a b c x d e f"], ["a b c y d e f"]
    assert score(hypotheses, references)["bleu_tokenized"] == 0
    assert score(hypotheses, references)["bleu_13a"] == 0
    assert score(hypotheses, references)["sacrebleu_detok"] > 0
    assert score(hypotheses, references, kind="raw")["sacrebleu"] > 0


def test_13a_splits_escapes_and_punctuation():
    split = [line.replace("&apos;t", "& apos ; t") for line in HYPOTHESES]
    wanted = [line.replace("&apos;t", "& apos ; t") for line in REFERENCES]
    scores = score(HYPOTHESES, REFERENCES)
    assert scores["bleu_13a"] == pytest.approx(multi_bleu(split, wanted))
    assert scores["bleu_13a"] != pytest.approx(scores["bleu_tokenized"])


def test_detokenised_sacrebleu_detokenises_both_sides():
    joined = [detokenize(line) for line in HYPOTHESES], [detokenize(line) for line in REFERENCES]
    assert score(HYPOTHESES, REFERENCES)["sacrebleu_detok"] == score(*joined, kind="raw")["sacrebleu"]
    quoted = ["`` a b '' , c d e f"]
    assert score(quoted, ['" a b " , c d e f'])["sacrebleu_detok"] == pytest.approx(100)
    assert score(quoted, ['" a b " , c d e f'])["bleu_13a"] < 100


def test_ter_counts_edits_per_reference_word():
    scores = score(["a b c d", "e f"], ["a x c d", "e f"])
    assert scores["ter"] == pytest.approx(100 * 1 / 6)


def test_json_of_words():
    scores = score(HYPOTHESES, REFERENCES)
    figures = {"bleu_tokenized", "bleu_13a", "sacrebleu_detok", "chrf", "ter"}
    data = json.loads(json.dumps(scores.to_json()))
    assert set(data) == figures | {"signatures", "sentences", "kind"}
    assert set(data["signatures"]) == figures
    assert (data["sentences"], data["kind"]) == (3, "words")
    assert scores.main == data["bleu_tokenized"] == bleu(HYPOTHESES, REFERENCES)
    assert "tok:none|smooth:none" in data["signatures"]["bleu_tokenized"]
    assert "tok:13a|smooth:none" in data["signatures"]["bleu_13a"]
    assert "tok:13a|smooth:exp" in data["signatures"]["sacrebleu_detok"]
    assert "nc:6" in data["signatures"]["chrf"]
    assert "tok:tercom" in data["signatures"]["ter"]


def test_json_of_raw_text():
    scores = score(HYPOTHESES, REFERENCES, kind="raw")
    data = scores.to_json()
    assert set(data) == {"sacrebleu", "chrf", "ter", "signatures", "sentences", "kind"}
    assert scores.main == data["sacrebleu"] == bleu(HYPOTHESES, REFERENCES, kind="raw")
    assert "tok:13a|smooth:exp" in data["signatures"]["sacrebleu"]


def test_without_ter():
    scores = score(HYPOTHESES, REFERENCES, ter=False)
    assert "ter" not in scores.to_json()
    assert "ter" not in scores.signatures


def test_tokenised_periods_do_not_warn(caplog, capfd):
    lines = ["one two three four five ."] * 150
    logger = logging.getLogger("sacrebleu")
    before = (
        logger.level,
        logger.disabled,
        list(logger.filters),
        list(logger.handlers),
        logging.root.manager.disable,
    )
    for kind in ("words", "raw"):
        score(lines, lines, kind=kind)
        bleu(lines, lines, kind=kind)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
    after = (
        logger.level,
        logger.disabled,
        list(logger.filters),
        list(logger.handlers),
        logging.root.manager.disable,
    )
    assert after == before


def test_nothing_translated_is_zero_not_an_error():
    scores = score(["", ""], ["a b", "c"])
    assert [scores[name] for name in ("bleu_tokenized", "bleu_13a", "sacrebleu_detok", "chrf")] == [0] * 4
    assert scores["ter"] == pytest.approx(100)


def test_unknown_kind():
    with pytest.raises(UserError, match='"tokens" is not a kind of text; choose "words"'):
        score(["a"], ["a"], kind="tokens")
    with pytest.raises(UserError, match="not a kind"):
        bleu(["a"], ["a"], kind="tokens")
