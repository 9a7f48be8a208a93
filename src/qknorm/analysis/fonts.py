"""Fonts for any script: which families have the characters, and which characters no font here has."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain

from matplotlib import font_manager, ft2font

from qknorm.analysis.direction import right_to_left

PREFERRED = ("DejaVu Sans", "Noto Sans", "Liberation Sans", "FreeSans", "Arial")
"""Families tried first, in this order; then whatever is installed, by name."""


def families(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """The fewest families, best first, that have the characters of these texts; and those that none has."""
    missing = {c for text in texts for c in text if _has_glyph(c)}
    chosen: list[str] = []
    for name, path in chain(_installed().items(), _not_yet_known()):
        found = {c for c in missing if ord(c) in _characters(path)}
        if found or not chosen:
            chosen.append(name)
        missing -= found
        if not missing:
            break
    return chosen, sorted(missing)


def warnings(texts: list[str]) -> list[str]:
    """Sentences about what these texts will look like where that is not as it should be."""
    found = []
    _, missing = families(texts)
    if missing:
        shown = "".join(missing[:20])
        found.append(
            f"No font on this machine has these characters, so boxes stand for them: {shown}. Install one "
            "that does (Debian: fonts-noto-core, fonts-noto-cjk; for emoji fonts-symbola, as fonts in colour "
            "cannot be drawn here)."
        )
    if any(right_to_left(text) for text in texts) and not hasattr(ft2font, "__libraqm_version__"):
        found.append(
            "This matplotlib draws right-to-left script letter by letter from the left; "
            "install 3.11 or newer."
        )
    return found


def _has_glyph(character: str) -> bool:
    """Whether a character is something to see: not white space, a control or a format mark."""
    return unicodedata.category(character)[0] not in "ZC"


@cache
def _installed() -> dict[str, str]:
    """Upright families of ordinary weight, and a file of each, the preferred ones first."""
    upright = {entry.name: entry.fname for entry in font_manager.fontManager.ttflist if _is_plain(entry)}
    order = {name: place for place, name in enumerate(PREFERRED)}
    return dict(sorted(upright.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


def _not_yet_known() -> Iterator[tuple[str, str]]:
    """Families installed since matplotlib listed those of this machine, and a file of each."""
    manager = font_manager.fontManager
    for path in sorted({*font_manager.findSystemFonts()} - {entry.fname for entry in manager.ttflist}):
        count = len(manager.ttflist)
        try:
            manager.addfont(path)
        except (OSError, RuntimeError):  # a damaged file; a font of pictures, which cannot be drawn
            continue
        yield from ((entry.name, path) for entry in manager.ttflist[count:] if _is_plain(entry))


def _is_plain(entry: font_manager.FontEntry) -> bool:
    return (
        entry.style == "normal"
        and entry.weight in (400, "normal", "regular", "book")
        and not entry.name.startswith("Last Resort")  # matplotlib's own: a box for every character
    )


@cache
def _characters(path: str) -> frozenset[int]:
    """The code points a font file has glyphs for."""
    return frozenset(ft2font.FT2Font(path).get_charmap())
