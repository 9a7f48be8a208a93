"""What one phrasebook has to draw from: lexemes both languages name, each clearly, and their fates.

A lexeme is kept only if no rendering of it, on either side, is also another lexeme's: then each side of a
phrase determines the other, and both directions can be learned.
"""

import datetime
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from qknorm.data import lexicon
from qknorm.data.cldr import Language, RelativeUnit
from qknorm.data.phrases import Combination, Date, Measure, Money, Name, Phrase, Relative, Zone

TRAIN, DEV, TEST = 0, 1, 2
DATE_FORMS = ("full", "long", "medium", "MMMMd", "MMMEd", "yMMMM", "yQQQQ")

_NUMBER = re.compile(r"\d[\d.,]*( \d{3}\b)*")


class Stock:
    """The lexemes for two languages and a number of training pairs, and which combinations are held out."""

    def __init__(self, languages: tuple[Language, Language], train: int, seed: int) -> None:
        self._languages = languages
        self._seed = seed
        self._claimed: tuple[set[str], set[str]] = (set(), set())
        self._fates: dict[Combination, int] = {}

        self.countries = self._names("country", lexicon.COUNTRIES, _share(train, 125, 16))
        self.tongues = self._names("language", lexicon.LANGUAGES, _share(train, 250, 12))
        self.coins = self._names("currency", lexicon.CURRENCIES, _share(train, 400, 8))
        self.months = self._names("month", [str(month) for month in range(1, 13)], 12)
        self.weekdays = self._names("weekday", [str(day) for day in range(7)], 7)
        self.units = self._measures(_share(train, 400, 8))
        self.currencies = self._money(_share(train, 400, 8))
        self.relative_units = self._relatives()
        self.zones = self._zones(_share(train, 1000, 4))
        self.dates = self._dates()

    def fate(self, combination: Combination) -> int:
        """Which split a combination belongs to; one in five is held out, for dev or for test."""
        fate = self._fates.get(combination)
        if fate is None:
            place = self._lot(combination) % 10
            fate = self._fates[combination] = DEV if place == 0 else TEST if place == 1 else TRAIN
        return fate

    def _lot(self, combination: Combination) -> int:
        drawn = hashlib.blake2b(f"{self._seed}:{combination!r}".encode(), digest_size=8)
        return int.from_bytes(drawn.digest(), "big")

    def _claim(self, phrases: Sequence[Phrase]) -> bool:
        """Keep a lexeme's renderings to itself; False, and nothing claimed, where one of them is taken."""
        texts = [[language.text(phrase) for phrase in phrases] for language in self._languages]
        for side, claimed in zip(texts, self._claimed, strict=True):
            if len(set(side)) < len(side) or not claimed.isdisjoint(side):
                return False
        for side, claimed in zip(texts, self._claimed, strict=True):
            claimed.update(side)
        return True

    def _names(self, kind: str, codes: Iterable[str], count: int) -> list[Name]:
        known = (
            Name(kind, code)
            for code in codes
            if all(language.name(kind, code) is not None for language in self._languages)
        )
        return [name for name in known if self._claim([name])][:count]

    def _measures(self, count: int) -> list[str]:
        amounts = (*lexicon.WHOLE_NUMBERS, *lexicon.HALF_NUMBERS)
        kept: list[str] = []
        for unit in lexicon.UNITS:
            phrases = [Measure(unit, amount) for amount in amounts]
            known = len(kept) < count and all(side.has_unit(unit, amounts) for side in self._languages)
            if known and self._claim(phrases):
                kept.append(unit)
                self._hold_out(phrases)
        return kept

    def _money(self, count: int) -> list[str]:
        kept: list[str] = []
        for currency in lexicon.CURRENCIES:
            phrases = [Money(currency, amount) for amount in lexicon.WHOLE_NUMBERS]
            known = len(kept) < count and all(side.has_currency(currency) for side in self._languages)
            if known and self._claim(phrases):
                kept.append(currency)
                self._hold_out(phrases)
        return kept

    def _relatives(self) -> list[RelativeUnit]:
        kept: list[RelativeUnit] = []
        for unit in lexicon.RELATIVE_UNITS:
            phrases = [Relative(unit, sign * n) for sign in (1, -1) for n in lexicon.RELATIVE_NUMBERS]
            if self._claim(phrases):
                kept.append(unit)
                self._hold_out(phrases)
        return kept

    def _zones(self, count: int) -> list[str]:
        kept: list[str] = []
        for zone in lexicon.ZONES:
            forms = lexicon.ZONE_FORMS
            known = all(
                language.zone(zone, form) is not None for language in self._languages for form in forms
            )
            if len(kept) < count and known and self._claim([Zone(zone, form) for form in forms]):
                kept.append(zone)
                self._share_out([("zone", zone, form) for form in forms])
        return kept

    def _dates(self) -> dict[str, list[int]]:
        """The months each date form may be used with: English "May 3, 2021" is long and medium at once."""
        kept: dict[str, list[int]] = {}
        for form in DATE_FORMS:
            months = range(1, 13, 3) if form == "yQQQQ" else range(1, 13)
            # The 13th serves as a day no month's number can be taken for.
            kept[form] = [m for m in months if self._claim([Date(form, datetime.date(2001, m, 13))])]
        return {form: months for form, months in kept.items() if months}

    def _hold_out(self, phrases: Sequence[Phrase]) -> None:
        """Hold out some amounts of each grammatical form a lexeme takes, never all of one form."""
        forms: defaultdict[tuple[str, ...], list[Combination]] = defaultdict(list)
        for phrase in phrases:
            form = tuple(_NUMBER.sub("#", language.text(phrase)) for language in self._languages)
            forms[form].extend(phrase.combinations())
        for combinations in forms.values():
            self._share_out(combinations)

    def _share_out(self, combinations: Sequence[Combination]) -> None:
        """Settle the fates of combinations that teach the same: with two or fewer, all train."""
        lots = sorted(combinations, key=self._lot)
        held = max(1, len(lots) // 5) if len(lots) > 2 else 0
        first = self._lot(lots[-1]) // 7 % 2
        for place, combination in enumerate(lots):
            self._fates[combination] = TRAIN if place >= held else DEV if (place + first) % 2 else TEST


def _share(train: int, pairs: int, least: int) -> int:
    """How many lexemes to take so that each is met in enough of the training pairs."""
    return max(least, train // pairs)
