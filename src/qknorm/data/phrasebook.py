"""The built-in parallel corpus: phrases of English and another language, made on the spot from CLDR.

CLDR holds human translations of dates, lists, amounts and names; a phrasebook composes them the way each
language does. Every word comes from CLDR through Babel, so the text is the same for the same Babel version,
pair, sizes and seed, on any machine. See `cldr` for how the text is cleaned.
"""

import datetime
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qknorm.data.cldr import Language
from qknorm.data.corpus import SPLITS, Corpus, split_paths, write_lines
from qknorm.data.lexicon import HALF_NUMBERS, PERCENTS, RELATIVE_NUMBERS, WHOLE_NUMBERS, YEARS, ZONE_FORMS
from qknorm.data.phrases import (
    JOINTS,
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
    Share,
    Time,
    Zone,
)
from qknorm.data.stock import DEV, TEST, TRAIN, Stock
from qknorm.errors import UserError

PHRASEBOOK_LANGUAGES = ("gl", "sk", "ar", "he", "vi")

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Phrasebook:
    """Three splits of (source, target) sentences; no sentence of either side is in two of them."""

    source: str
    target: str
    train: Pairs
    dev: Pairs
    test: Pairs


def phrasebook(
    pair: str = "en-gl", *, train: int = 10_000, dev: int = 500, test: int = 500, seed: int = 1
) -> Phrasebook:
    """Make a phrasebook: distinct pairs, each side determining the other.

    Dev and test sentences each hold a combination (a unit with an amount, two countries side by side, a month
    with a day) that no training sentence holds, but no word that none holds. A smaller `train` speaks of
    fewer things. `"gl-en"` is `"en-gl"` turned round.
    """
    source, target = _languages(pair)
    if train < 1 or dev < 0 or test < 0:
        raise UserError(
            f"A phrasebook needs at least 1 training pair and no negative sizes; got {train}, {dev}, {test}."
        )
    sides = (Language("en"), Language(target if source == "en" else source))
    maker = _Maker(sides, Stock(sides, train, seed), seed)
    made = [maker.sentences(split, count) for split, count in ((TRAIN, train), (DEV, dev), (TEST, test))]
    if source != "en":
        made = [[(other, english) for english, other in pairs] for pairs in made]
    return Phrasebook(source, target, *made)


def write_phrasebook(
    pair: str, folder: Path, *, train: int = 10_000, dev: int = 500, test: int = 500, seed: int = 1
) -> Corpus:
    """Make a phrasebook and write it as `train.en`, `train.gl`, `dev.en` and so on."""
    book = phrasebook(pair, train=train, dev=dev, test=test, seed=seed)
    paths = split_paths(folder, book.source, book.target)
    counts: dict[str, int] = {}
    for split in SPLITS:
        pairs: Pairs = getattr(book, split)
        for side, path in enumerate(paths[split]):
            write_lines(path, (sentences[side] for sentences in pairs))
        counts[split] = len(pairs)
    note = f"The built-in phrasebook, made from CLDR with seed {seed}."
    return Corpus(f"phrasebook-{pair}", book.source, book.target, paths, counts, "raw", note)


def words(sentence: str) -> list[str]:
    """A sentence's words and figures without the marks around them; "15:05" and "13–17" are two each."""
    return [word for piece in _PIECE.findall(sentence) if (word := piece.strip(".,،%"))]


_PIECE = re.compile(r"[^\s:;/()—–]+")


def _languages(pair: str) -> tuple[str, str]:
    source, _, target = pair.partition("-")
    if (source == "en") == (target == "en") or not {source, target} <= {"en", *PHRASEBOOK_LANGUAGES}:
        pairs = ", ".join(f"en-{code}" for code in PHRASEBOOK_LANGUAGES)
        raise UserError(f'There is no phrasebook for "{pair}"; there are {pairs}, and each turned round.')
    return source, target


class _Maker:
    """Draws phrases until a split has its sentences."""

    def __init__(self, sides: tuple[Language, Language], stock: Stock, seed: int) -> None:
        self._sides = sides
        self._stock = stock
        self._seed = seed
        self._used: tuple[set[str], set[str]] = (set(), set())
        self._known: tuple[set[str], set[str]] = (set(), set())

    def sentences(self, split: int, count: int) -> Pairs:
        """`count` new pairs of a split; training comes first, since it settles which words are known."""
        draw = _Draw(self._stock, random.Random(f"{self._seed}:{split}"))
        made: Pairs = []
        misses = 0
        while len(made) < count:
            phrase = draw.phrase()
            pair = self._accepted(phrase, split) if self._split(phrase) == split else None
            if pair is not None:
                made.append(pair)
                misses = 0
                continue
            misses += 1
            if misses > 10_000:
                raise UserError(
                    f"The phrasebook has no more than {len(made)} {SPLITS[split]} pairs at these sizes; "
                    f"ask for fewer than {count}, or for more training pairs."
                )
        return made

    def _split(self, phrase: Phrase) -> int | None:
        """The split a phrase may be in; none for one that mixes what dev and test hold out."""
        held = {self._stock.fate(key) for key in phrase.combinations()} - {TRAIN}
        if len(held) > 1:
            return None
        return held.pop() if held else TRAIN

    def _accepted(self, phrase: Phrase, split: int) -> tuple[str, str] | None:
        english, other = (side.text(phrase) for side in self._sides)
        pair = (english, other)
        if any(text in used for text, used in zip(pair, self._used, strict=True)):
            return None
        for text, known in zip(pair, self._known, strict=True):
            if split == TRAIN:
                known.update(words(text))
            elif not known.issuperset(words(text)):
                return None
        for text, used in zip(pair, self._used, strict=True):
            used.add(text)
        return pair


class _Draw:
    """Draws phrases of all kinds from a stock."""

    def __init__(self, stock: Stock, rng: random.Random) -> None:
        self._stock = stock
        self._rng = rng
        self._kinds: list[tuple[Callable[[], Phrase], int]] = [
            (self._name, 3),
            (self._date, 14),
            (self._time, 3),
            (self._moment, 2),
            (self._relative, 10),
            (self._interval, 7),
            (self._measure, 9),
            (self._money, 9),
            (self._zone, 2),
            (self._names, 15),
            (self._choice, 4),
            (self._share, 4),
            (self._joined, 30),
        ]
        self._topics: list[tuple[Callable[[], Phrase], int]] = [
            (self._name, 5),
            (self._names, 2),
            (self._zone, 1),
        ]
        self._details: list[tuple[Callable[[], Phrase], int]] = [
            (self._date, 5),
            (self._relative, 3),
            (self._measure, 3),
            (self._money, 3),
            (self._interval, 2),
            (self._time, 1),
        ]

    def phrase(self) -> Phrase:
        """Any phrase at all."""
        return self._one_of(self._kinds)

    def _one_of(self, kinds: list[tuple[Callable[[], Phrase], int]]) -> Phrase:
        draws, weights = zip(*kinds, strict=True)
        draw: Callable[[], Phrase] = self._rng.choices(draws, weights)[0]
        return draw()

    def _kind_of_name(self) -> list[Name]:
        stock = self._stock
        kinds = (stock.countries, stock.tongues, stock.coins, stock.months, stock.weekdays)
        return self._rng.choices(kinds, (8, 5, 2, 1, 1))[0]

    def _name(self) -> Name:
        return self._rng.choice(self._kind_of_name())

    def _names(self) -> Phrase:
        count = self._rng.choices((2, 3, 4), (5, 3, 1))[0]
        items = self._rng.sample(self._kind_of_name(), count)
        return Listing(self._rng.choice(("standard", "or")), tuple(items))

    def _choice(self) -> Phrase:
        """Two amounts joined by "or": before a figure, CLDR's "and" is not how Hebrew is written."""
        draw = self._rng.choice((self._measure, self._money, self._relative))
        return Listing("or", (draw(), draw()))

    def _day(self, months: list[int] | range) -> datetime.date:
        first = datetime.date(self._rng.choice(YEARS), self._rng.choice(months), 1)
        after = (first + datetime.timedelta(days=31)).replace(day=1)
        return first + datetime.timedelta(days=self._rng.randrange((after - first).days))

    def _date(self) -> Phrase:
        forms = list(self._stock.dates)
        weights = [4 if form in ("full", "long") else 2 for form in forms]
        form = self._rng.choices(forms, weights)[0]
        return Date(form, self._day(self._stock.dates[form]))

    def _clock(self) -> datetime.time:
        return datetime.time(self._rng.randrange(24), 5 * self._rng.randrange(12))

    def _time(self) -> Phrase:
        return Time(self._clock())

    def _moment(self) -> Phrase:
        return Moment(self._day(range(1, 13)), self._clock())

    def _interval(self) -> Phrase:
        kind = self._rng.choice(("days", "months", "hours"))
        if kind == "hours":
            first, last = sorted((self._clock(), self._clock()))
            return Hours(first, last) if first < last else self._interval()
        # One year for all: an interval of days does not say its year.
        start, end = sorted(self._day(range(1, 13)).replace(year=2000) for _ in range(2))
        if start.month == end.month and (kind == "months" or start == end):
            return self._interval()
        if kind == "days":
            return Days(start, end)
        year = self._rng.choice(YEARS)
        return Months(start.replace(year=year, day=1), end.replace(year=year, day=1))

    def _amount(self, amounts: tuple[int, ...]) -> int:
        """Small amounts half of the time: they are where the plural forms differ."""
        return self._rng.randrange(1, 6) if self._rng.random() < 0.5 else self._rng.choice(amounts)

    def _measure(self) -> Phrase:
        unit = self._rng.choice(self._stock.units)
        halves = self._rng.random() < 0.15
        return Measure(unit, self._rng.choice(HALF_NUMBERS) if halves else self._amount(WHOLE_NUMBERS))

    def _money(self) -> Phrase:
        return Money(self._rng.choice(self._stock.currencies), self._amount(WHOLE_NUMBERS))

    def _relative(self) -> Phrase:
        amount = self._amount(RELATIVE_NUMBERS) * self._rng.choice((1, -1))
        return Relative(self._rng.choice(self._stock.relative_units), amount)

    def _zone(self) -> Phrase:
        return Zone(self._rng.choice(self._stock.zones), self._rng.choice(ZONE_FORMS))

    def _share(self) -> Phrase:
        return Share(self._name(), self._rng.choice(PERCENTS))

    def _joined(self) -> Phrase:
        return Joined(self._rng.choice(JOINTS), self._one_of(self._topics), self._one_of(self._details))
