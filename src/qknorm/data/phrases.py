"""The kinds of phrase a phrasebook is made of: each says itself in a language, and names its combinations.

A combination is what a phrase brings together: a unit and an amount, a month and a day, two countries side
by side. Holding combinations out of the training split is what makes the test phrases unseen ones, though
every word in them was seen.
"""

import datetime
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from qknorm.data.cldr import Language, ListStyle, RelativeUnit

Combination = tuple[str | int | float, ...]

# Marks that join two phrases; the en dash is left to CLDR's intervals.
JOINTS = ("{0}: {1}", "{0} — {1}", "{0}; {1}", "{0} ({1})")


class Phrase(Protocol):
    """Something both languages can say."""

    def text(self, language: Language) -> str:
        """The phrase in one language."""
        ...

    def combinations(self) -> tuple[Combination, ...]:
        """What it brings together; empty for a bare name."""
        ...


@dataclass(frozen=True, slots=True)
class Name:
    """A country, language, currency, month or weekday."""

    kind: str
    code: str

    def text(self, language: Language) -> str:
        name = language.name(self.kind, self.code)
        assert name is not None, f"the lexicon holds {self.kind} {self.code}, which {language.code} lacks"
        return name

    def combinations(self) -> tuple[Combination, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone in one of its forms."""

    zone: str
    form: str

    def text(self, language: Language) -> str:
        name = language.zone(self.zone, self.form)
        assert name is not None, f"the lexicon holds zone {self.zone}, which {language.code} lacks"
        return name

    def combinations(self) -> tuple[Combination, ...]:
        return (("zone", self.zone, self.form),)


@dataclass(frozen=True, slots=True)
class Measure:
    """An amount of a unit."""

    unit: str
    amount: float

    def text(self, language: Language) -> str:
        return language.measure(self.unit, self.amount)

    def combinations(self) -> tuple[Combination, ...]:
        return (("measure", self.unit, self.amount),)


@dataclass(frozen=True, slots=True)
class Money:
    """An amount of a currency."""

    currency: str
    amount: float

    def text(self, language: Language) -> str:
        return language.money(self.currency, self.amount)

    def combinations(self) -> tuple[Combination, ...]:
        return (("money", self.currency, self.amount),)


@dataclass(frozen=True, slots=True)
class Relative:
    """A time from now: ahead, or back where the amount is negative."""

    unit: RelativeUnit
    amount: int

    def text(self, language: Language) -> str:
        return language.relative(self.unit, self.amount)

    def combinations(self) -> tuple[Combination, ...]:
        return (("relative", self.unit, self.amount),)


@dataclass(frozen=True, slots=True)
class Share:
    """A name's percentage."""

    name: Name
    amount: int

    def text(self, language: Language) -> str:
        return f"{language.text(self.name)}: {language.percent(self.amount)}"

    def combinations(self) -> tuple[Combination, ...]:
        return (("share", self.name.kind, self.name.code, self.amount),)


@dataclass(frozen=True, slots=True)
class Date:
    """A date in one of CLDR's forms."""

    form: str
    day: datetime.date

    def text(self, language: Language) -> str:
        return language.date(self.form, self.day)

    def combinations(self) -> tuple[Combination, ...]:
        if self.form == "yMMMM":
            return (("month", self.day.month, self.day.year),)
        if self.form == "yQQQQ":
            return (("quarter", (self.day.month + 2) // 3, self.day.year),)
        return (_day(self.day),)


@dataclass(frozen=True, slots=True)
class Time:
    """A time of day."""

    time: datetime.time

    def text(self, language: Language) -> str:
        return language.time(self.time)

    def combinations(self) -> tuple[Combination, ...]:
        return (_time(self.time),)


@dataclass(frozen=True, slots=True)
class Moment:
    """A full date with a time of day."""

    day: datetime.date
    time: datetime.time

    def text(self, language: Language) -> str:
        return language.moment(self.day, self.time)

    def combinations(self) -> tuple[Combination, ...]:
        return (_day(self.day), _time(self.time))


@dataclass(frozen=True, slots=True)
class Days:
    """From one day to another of the same year."""

    first: datetime.date
    last: datetime.date

    def text(self, language: Language) -> str:
        return language.days(self.first, self.last)

    def combinations(self) -> tuple[Combination, ...]:
        return (_day(self.first), _day(self.last))


@dataclass(frozen=True, slots=True)
class Months:
    """From one month to another of the same year."""

    first: datetime.date
    last: datetime.date

    def text(self, language: Language) -> str:
        return language.months(self.first, self.last)

    def combinations(self) -> tuple[Combination, ...]:
        ends = ("months", self.first.month, self.last.month)
        return (ends, ("month", self.last.month, self.last.year))


@dataclass(frozen=True, slots=True)
class Hours:
    """From one time of day to another."""

    first: datetime.time
    last: datetime.time

    def text(self, language: Language) -> str:
        return language.hours(self.first, self.last)

    def combinations(self) -> tuple[Combination, ...]:
        return (_time(self.first), _time(self.last))


@dataclass(frozen=True, slots=True)
class Listing:
    """Two to four phrases with the language's "and" ("standard") or "or"."""

    style: ListStyle
    items: tuple[Phrase, ...]

    def text(self, language: Language) -> str:
        return language.listing(self.style, tuple(language.text(item) for item in self.items))

    def combinations(self) -> tuple[Combination, ...]:
        inner = [key for item in self.items for key in item.combinations()]
        names = [item for item in self.items if isinstance(item, Name)]
        pairs = [
            ("pair", first.kind, *sorted((first.code, second.code))) for first, second in pairwise(names)
        ]
        return (*inner, *pairs)


@dataclass(frozen=True, slots=True)
class Joined:
    """A topic and what is said of it, with a neutral mark between them."""

    joint: str
    topic: Phrase
    detail: Phrase

    def text(self, language: Language) -> str:
        return self.joint.format(language.text(self.topic), language.text(self.detail))

    def combinations(self) -> tuple[Combination, ...]:
        return (*self.topic.combinations(), *self.detail.combinations())


def _day(day: datetime.date) -> Combination:
    return ("day", day.month, day.day)


def _time(time: datetime.time) -> Combination:
    return ("time", time.hour, time.minute)
