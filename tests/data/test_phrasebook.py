"""The phrasebook: real language on both sides, splits that ask for composition, the same on every machine."""

import hashlib
import os
import random
import re
import subprocess
import sys
import unicodedata
from datetime import date, time
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("babel", reason="needs the Python package babel")

from qknorm.data import phrasebook as module
from qknorm.data.cldr import Language, clean
from qknorm.data.lexicon import RELATIVE_NUMBERS, WHOLE_NUMBERS
from qknorm.data.phrasebook import PHRASEBOOK_LANGUAGES, Phrasebook, phrasebook, write_phrasebook
from qknorm.data.phrases import (
    Date,
    Days,
    Hours,
    Joined,
    Listing,
    Measure,
    Moment,
    Money,
    Months,
    Name,
    Phrase,
    Relative,
    Time,
    Zone,
)
from qknorm.data.stock import DEV, TEST, TRAIN, Stock
from qknorm.errors import UserError

SIZES = {"train": 2000, "dev": 200, "test": 300}


@cache
def book(code: str) -> Phrasebook:
    return phrasebook(f"en-{code}", **SIZES)


@cache
def stock(code: str) -> Stock:
    return Stock((Language("en"), Language(code)), 6_000, seed=1)


def figures_and_letters(sentence: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFC", sentence))


@pytest.mark.parametrize("code", PHRASEBOOK_LANGUAGES)
class TestEachLanguage:
    def test_sizes_and_sides(self, code: str) -> None:
        made = book(code)
        assert (made.source, made.target) == ("en", code)
        assert [len(made.train), len(made.dev), len(made.test)] == [2000, 200, 300]

    @pytest.mark.parametrize("side", [0, 1])
    def test_no_sentence_comes_twice_in_any_split(self, code: str, side: int) -> None:
        made = book(code)
        sentences = [pair[side] for pair in (*made.train, *made.dev, *made.test)]
        assert len(set(sentences)) == len(sentences)

    @pytest.mark.parametrize("side", [0, 1])
    def test_held_out_sentences_use_words_of_the_training_split(self, code: str, side: int) -> None:
        made = book(code)
        known = {word for pair in made.train for word in figures_and_letters(pair[side])}
        asked = [word for pair in (*made.dev, *made.test) for word in figures_and_letters(pair[side])]
        assert sum(word in known for word in asked) / len(asked) >= 0.995

    def test_held_out_phrases_are_not_part_of_training_sentences(self, code: str) -> None:
        made = book(code)
        train = "\n".join(english for english, _ in made.train)
        for english, _ in (*made.dev, *made.test):
            if english in train:  # "in 9 hours" is another phrase than "9 hours"
                alone = rf"(?<![\w.,:])(?<!in ){re.escape(english)}(?![\w.,:])(?! ago)"
                assert not re.search(alone, train), english

    def test_neither_side_is_ambiguous_even_among_phrases_not_kept(self, code: str) -> None:
        sides = (Language("en"), Language(code))
        draw = module._Draw(stock(code), random.Random(7))
        there: dict[str, str] = {}
        back: dict[str, str] = {}
        for _ in range(3000):
            english, other = (side.text(phrase) for phrase in [draw.phrase()] for side in sides)
            assert there.setdefault(english, other) == other
            assert back.setdefault(other, english) == english

    def test_text_is_clean(self, code: str) -> None:
        for pair in book(code).train:
            for text in pair:
                assert text == clean(text)
                assert not any(unicodedata.category(mark) in ("Cf", "Cc", "Zl", "Zp") for mark in text), text
                assert not re.search(r"\s\s|[^\S ]", text), text
                assert all(figure.isascii() for figure in text if figure.isdigit()), text

    def test_babel_never_fell_back_to_an_identifier(self, code: str) -> None:
        codes = re.compile(r"[a-z]+-(meter|hour|day|year|mile|cup)|\b[A-Z]{3}\b.*\d|_")
        assert not [text for pair in book(code).train for text in pair if codes.search(text)]

    def test_lengths_are_moderate(self, code: str) -> None:
        lengths = [len(text.split()) for pair in book(code).train for text in pair]
        assert 3 <= sum(lengths) / len(lengths) <= 14
        assert max(lengths) <= 30

    def test_every_grammatical_form_of_an_amount_is_in_training(self, code: str) -> None:
        sides = (Language("en"), Language(code))
        phrases = [
            *(Measure(unit, amount) for unit in stock(code).units for amount in WHOLE_NUMBERS),
            *(Money(currency, amount) for currency in stock(code).currencies for amount in WHOLE_NUMBERS),
            *(
                Relative(unit, sign * amount)
                for unit in stock(code).relative_units
                for amount in RELATIVE_NUMBERS
                for sign in (1, -1)
            ),
        ]
        fates: dict[tuple[str, ...], set[int]] = {}
        for phrase in phrases:
            form = tuple(re.sub(r"[\d.,]+( \d{3})*", "#", side.text(phrase)) for side in sides)
            fates.setdefault(form, set()).add(stock(code).fate(phrase.combinations()[0]))
        assert all(TRAIN in found for found in fates.values())
        assert sum(DEV in found for found in fates.values()) > 20
        assert sum(TEST in found for found in fates.values()) > 20

    def test_turned_round_it_is_the_same_book(self, code: str) -> None:
        there = phrasebook(f"en-{code}", train=200, dev=20, test=20)
        back = phrasebook(f"{code}-en", train=200, dev=20, test=20)
        assert (back.source, back.target) == (code, "en")
        for split in ("train", "dev", "test"):
            assert [pair[::-1] for pair in getattr(there, split)] == getattr(back, split)


def test_rare_plural_forms_are_asked_for() -> None:
    """Slovak's form for 2 to 4 is held out for some unit or currency at one of the three amounts."""
    few = [stock("sk").fate(("measure", unit, amount)) for unit in stock("sk").units for amount in (2, 3, 4)]
    assert few.count(TRAIN) >= 2 * len(stock("sk").units)
    assert few.count(DEV) > 0
    assert few.count(TEST) > 0


def test_amounts_take_the_plural_their_language_asks_for() -> None:
    slovak, arabic = Language("sk"), Language("ar")
    amounts = (1, 3, 5, 2.5)
    measured = [slovak.measure("length-kilometer", amount) for amount in amounts]
    assert measured == ["1 kilometer", "3 kilometre", "5 kilometrov", "2,5 kilometra"]
    assert slovak.money("EUR", 3) == "3 eurá"
    assert arabic.relative("day", 2) == "خلال يومين"
    assert arabic.relative("day", -3) == "قبل 3 أيام"
    assert Language("en").relative("week", -2) == "2 weeks ago"
    assert Language("en").relative("month", 18) == "in 18 months"


def test_intervals_are_written_as_times_are() -> None:
    spans = [Language(code).hours(time(14, 35), time(23, 50)) for code in ("en", "sk")]
    assert spans == ["2:35 – 11:50 PM", "14:35 – 23:50"]


def test_a_phrase_has_the_combinations_of_the_phrases_in_it() -> None:
    """Else a held-out phrase could stand inside a training sentence."""
    first, last, early, late = date(2001, 3, 5), date(2001, 9, 7), time(8, 5), time(9, 10)
    name, other = Name("country", "ES"), Name("country", "FR")
    within: list[tuple[Phrase, Phrase]] = [
        (Date("full", last), Date("MMMMd", last)),
        (Moment(last, late), Date("full", last)),
        (Moment(last, late), Time(late)),
        (Days(first, last), Date("MMMMd", last)),
        (Days(first, last), Date("MMMMd", first)),
        (Months(first, last), Date("yMMMM", last)),
        (Hours(early, late), Time(late)),
        (Hours(early, late), Time(early)),
        (Listing("or", (Measure("length-mile", 2), Money("EUR", 3))), Money("EUR", 3)),
        (Joined("{0}: {1}", Zone("Japan", "generic"), Time(late)), Zone("Japan", "generic")),
        (Joined("{0}: {1}", Zone("Japan", "generic"), Time(late)), Time(late)),
        (Listing("standard", (Name("country", "IT"), name, other)), Listing("or", (other, name))),
    ]
    for whole, part in within:
        assert part.combinations()
        assert set(part.combinations()) <= set(whole.combinations())


def test_a_unit_without_spelled_out_forms_is_left_out() -> None:
    """Babel writes "2 duration-day" where CLDR has no Galician pattern of its own."""
    assert not Language("gl").has_unit("duration-day", (2,))
    assert Language("gl").has_unit("duration-hour", (1, 2))
    assert "duration-day" not in stock("gl").units
    assert "duration-hour" in stock("gl").units


def test_a_date_form_that_reads_like_another_is_left_out() -> None:
    """English "May 3, 2021" is the long form and the medium one."""
    assert 5 in stock("gl").dates["long"]
    assert 5 not in stock("gl").dates["medium"]
    assert 3 in stock("gl").dates["medium"]


def test_names_both_languages_share_with_another_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Language.name

    def name(self: Language, kind: str, code: str) -> str | None:
        return "España" if (self.code, code) == ("gl", "FR") else real(self, kind, code)

    monkeypatch.setattr(Language, "name", name)
    kept = Stock((Language("en"), Language("gl")), 10_000, seed=1).countries
    assert Name("country", "ES") in kept
    assert Name("country", "FR") not in kept


def test_clean_removes_marks_and_unusual_spaces() -> None:
    assert clean("13\u200f/03\u200f/2021\u061c 3:05\u202fPM\u2009–\u00a0x ") == "13/03/2021 3:05 PM – x"


def test_seeds_differ_and_repeat() -> None:
    first = phrasebook("en-sk", train=300, dev=20, test=20, seed=1)
    assert phrasebook("en-sk", train=300, dev=20, test=20, seed=1) == first
    assert phrasebook("en-sk", train=300, dev=20, test=20, seed=2).train != first.train


def test_hash_seeds_do_not_matter() -> None:
    code = (
        "import hashlib; from qknorm.data.phrasebook import phrasebook;"
        "book = phrasebook('he-en', train=300, dev=30, test=30, seed=3);"
        "print(hashlib.sha256(repr(book).encode()).hexdigest())"
    )
    prints = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    here = phrasebook("he-en", train=300, dev=30, test=30, seed=3)
    assert prints == [hashlib.sha256(repr(here).encode()).hexdigest()] * 2


def test_a_small_book_speaks_of_fewer_things() -> None:
    sides = (Language("en"), Language("gl"))
    small, large = (Stock(sides, train, seed=1) for train in (500, 5_000))
    for kind in ("countries", "tongues", "coins", "units", "currencies", "zones"):
        assert getattr(large, kind)[: len(getattr(small, kind))] == getattr(small, kind)
        assert 4 <= len(getattr(small, kind)) < len(getattr(large, kind))


def test_files_hold_the_book(tmp_path: Path) -> None:
    corpus = write_phrasebook("vi-en", tmp_path / "new", train=120, dev=10, test=15, seed=4)
    made = phrasebook("vi-en", train=120, dev=10, test=15, seed=4)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        f"{split}.{code}" for split in ("dev", "test", "train") for code in ("en", "vi")
    ]
    assert corpus.counts == {"train": 120, "dev": 10, "test": 15}
    assert corpus.state == "raw"
    for split, paths in corpus.paths.items():
        assert [path.suffix for path in paths] == [".vi", ".en"]
        for side, path in enumerate(paths):
            lines = [pair[side] for pair in getattr(made, split)]
            assert path.read_bytes().decode() == "".join(line + "\n" for line in lines)


@pytest.mark.parametrize("pair", ["en-en", "gl-sk", "en-fr", "en", "en-gl-sk", ""])
def test_unknown_pairs_are_refused(pair: str) -> None:
    with pytest.raises(UserError, match="en-gl, en-sk, en-ar, en-he, en-vi"):
        phrasebook(pair)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (10, -1, 1), (10, 1, -1)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(UserError, match="at least 1 training pair"):
        phrasebook("en-gl", train=sizes[0], dev=sizes[1], test=sizes[2])


def test_more_than_the_training_words_allow_is_refused() -> None:
    with pytest.raises(UserError, match=r"no more than \d+ test pairs"):
        phrasebook("en-gl", train=3, dev=0, test=500)
