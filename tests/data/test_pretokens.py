"""How lines are cut into words."""

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.data.pretokens import byte_symbols, raw_words, spell_word, split_raw, split_words


def test_words_are_parted_by_ascii_white_space_only() -> None:
    assert split_words("  a b\tc \x0b d\u00a0e f\u2028g ") == ["a", "b", "c", "d\u00a0e", "f\u2028g"]
    assert split_words(" ") == []


def test_raw_text_sets_digits_and_punctuation_apart() -> None:
    assert split_raw("Don't pay 12.5 €!") == [
        " Don", "'", "t", " pay", " 1", "2", ".", "5", " €", "!",
    ]  # fmt: skip


def test_marks_and_joiners_stay_inside_words() -> None:
    for word in ("שָׁלוֹם", "كِتَاب", "می\u200cروم", "हिन्दी", "क्\u200dष", "e\u0301te\u0301"):
        assert split_raw(f"{word} {word},") == [" " + word, " " + word, ","]


def test_a_run_of_spaces_leaves_its_last_to_the_word() -> None:
    assert split_raw("a    b") == [" a", "   ", " b"]
    assert split_raw("  a ") == ["  ", " a", " "]


@settings(deadline=None)
@given(st.text())
def test_raw_pieces_joined_are_the_line_after_a_space(line: str) -> None:
    assert "".join(split_raw(line)) == (" " + line if line else "")


def test_every_character_is_kept() -> None:
    everything = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    assert "".join(split_raw(everything)) == " " + everything


def test_spelling() -> None:
    assert spell_word("abc") == ["a@@", "b@@", "c"]
    assert byte_symbols("é") == ["<0xC3>", "<0xA9>"]


def test_words_of_a_reader():
    assert raw_words("in 1999, it’s") == [" in", " 1999", ",", " it", "’", "s"]
    assert raw_words("我喜欢Go 東京タ。") == [" 我", "喜", "欢", "Go", " 東", "京", "タ", "。"]
    assert raw_words("น้ำ가방 e\u0301") == [" น้", "ำ", "가방", " e\u0301"], "marks stay with their letters"
    assert raw_words("a 👩\u200d👩\u200d👧!❤\ufe0f👍🏽") == [
        " a",
        " 👩\u200d👩\u200d👧",
        "!",
        "❤\ufe0f",
        "👍🏽",
    ]


@given(st.text(alphabet="ab 1,\u200d\u0301我のกา́👩🏽\ufe0f"))
def test_words_of_a_reader_are_the_line(line):
    assert "".join(raw_words(line)) == (" " + line if line else "")
