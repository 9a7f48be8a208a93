"""One language's words as CLDR has them, through Babel, in clean text.

Clean means: Western digits in every language (what Babel writes by default, Arabic included, so numbers are
consistent across phrases), no invisible direction marks, and no spaces but the plain one. Nothing here
translates; a name CLDR lacks is reported as missing, never replaced by another language's.
"""

import datetime
import re
from typing import TYPE_CHECKING, Any, Literal

from babel import Locale, dates, lists, numbers, units

if TYPE_CHECKING:
    from qknorm.data.phrases import Phrase

RelativeUnit = Literal["second", "minute", "hour", "day", "week", "month", "year"]
ListStyle = Literal["standard", "or"]

_MARKS = re.compile("[\u200e\u200f\u061c\u200b\u2066-\u2069]")
_SPACES = re.compile("[\u0020\u00a0\u2000-\u200a\u202f]+")
_DAY = datetime.timedelta(days=1)
_STEPS: dict[str, datetime.timedelta] = {
    "second": datetime.timedelta(seconds=1),
    "minute": datetime.timedelta(minutes=1),
    "hour": datetime.timedelta(hours=1),
    "day": _DAY,
    "week": 7 * _DAY,
    "month": 30 * _DAY,
    "year": 365 * _DAY,
}
_NAMED_DATES = ("full", "long", "medium")


def clean(text: str) -> str:
    """Remove direction marks and turn every kind of space into one plain space."""
    return _SPACES.sub(" ", _MARKS.sub("", text)).strip()


class Language:
    """Renders names, dates, times and quantities in one language."""

    def __init__(self, code: str) -> None:
        self.code = code
        self._locale = Locale.parse(code)
        self._texts: dict[Phrase, str] = {}
        # Languages that write 3:05 PM write their intervals so, too.
        self._hours = "hm" if "h" in self._locale.time_formats["short"].pattern else "Hm"

    def text(self, phrase: "Phrase") -> str:
        """A phrase's text in this language, made once."""
        text = self._texts.get(phrase)
        if text is None:
            text = self._texts[phrase] = phrase.text(self)
        return text

    def name(self, kind: str, code: str) -> str | None:
        """A country, language, currency, month or weekday as it stands alone, or None where CLDR has none."""
        locale = self._locale
        if kind == "country":
            found = locale.territories.get(code)
        elif kind == "language":
            found = locale.languages.get(code)
        elif kind == "currency":
            found = locale.currencies.get(code)
        elif kind == "month":
            found = dates.get_month_names("wide", "stand-alone", locale)[int(code)]
        else:
            found = dates.get_day_names("wide", "stand-alone", locale)[int(code)]
        return None if found is None else clean(found)

    def zone(self, zone: str, form: str) -> str | None:
        """A time zone's long name: generic, standard or daylight."""
        found = self._locale.meta_zones.get(zone, {}).get("long", {}).get(form)
        return None if found is None else clean(found)

    def has_unit(self, unit: str, amounts: tuple[float, ...]) -> bool:
        """Whether CLDR spells this unit out for all these amounts; Babel would make do with its bare name."""
        patterns: Any = self._locale._data["unit_patterns"].get(unit, {}).get("long", {})
        return all(self._locale.plural_form(amount) in patterns for amount in amounts)

    def has_currency(self, code: str) -> bool:
        """Whether CLDR names this currency beside an amount."""
        return code in self._locale.currencies and numbers.get_currency_name(code, 5, self._locale) != code

    def measure(self, unit: str, amount: float) -> str:
        """ "3 kilometers", with the plural form the amount asks for."""
        return clean(units.format_unit(amount, unit, length="long", locale=self._locale))

    def money(self, currency: str, amount: float) -> str:
        """ "3 Swiss francs", with the plural form the amount asks for."""
        return clean(
            numbers.format_currency(
                amount, currency, locale=self._locale, format_type="name", currency_digits=False
            )
        )

    def percent(self, amount: int) -> str:
        """ "25%", in the language's own spacing."""
        return clean(numbers.format_percent(amount / 100, locale=self._locale))

    def relative(self, unit: RelativeUnit, amount: int) -> str:
        """ "in 3 days", or "3 days ago" for a negative amount."""
        span = amount * _STEPS[unit]
        # A threshold out of reach keeps Babel from choosing a larger unit by itself.
        text = dates.format_timedelta(
            span, granularity=unit, threshold=1e9, add_direction=True, locale=self._locale
        )
        return clean(text)

    def date(self, form: str, day: datetime.date) -> str:
        """A date in a named form ("full", "long", "medium") or by its CLDR skeleton ("yMMMM")."""
        if form in _NAMED_DATES:
            return clean(dates.format_date(day, form, locale=self._locale))
        return clean(dates.format_skeleton(form, day, locale=self._locale))

    def time(self, time: datetime.time) -> str:
        """A time of day in hours and minutes."""
        return clean(dates.format_time(time, "short", locale=self._locale))

    def moment(self, day: datetime.date, time: datetime.time) -> str:
        """A full date with its time of day, in the order and with the mark the language puts between."""
        pattern = str(dates.get_datetime_format("full", locale=self._locale)).replace("'", "")
        return clean(pattern.replace("{0}", self.time(time)).replace("{1}", self.date("full", day)))

    def days(self, first: datetime.date, last: datetime.date) -> str:
        """An interval of days of one year, year unsaid."""
        return clean(dates.format_interval(first, last, "MMMd", locale=self._locale))

    def months(self, first: datetime.date, last: datetime.date) -> str:
        """An interval of months of one year."""
        return clean(dates.format_interval(first, last, "yMMMM", locale=self._locale))

    def hours(self, first: datetime.time, last: datetime.time) -> str:
        """An interval within one day."""
        return clean(dates.format_interval(first, last, self._hours, locale=self._locale))

    def listing(self, style: ListStyle, items: tuple[str, ...]) -> str:
        """Items joined with the language's "and" ("standard") or "or"."""
        return clean(lists.format_list(items, style=style, locale=self._locale))
