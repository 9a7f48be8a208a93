"""Which way text runs: from left to right, or from right to left."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

SPECIAL = re.compile(r"<[^<>]+>")
"""The ends of a sentence, the unknown and single bytes as they are shown: they run no way."""


def right_to_left(text: str) -> bool:
    """Whether the first letter that has a direction runs from right to left."""
    return _direction(text) in ("R", "AL")


def mostly_right_to_left(tokens: Iterable[str]) -> bool:
    """Whether more of these run from right to left than do not; digits and punctuation have no say."""
    directions = [found for token in tokens if (found := _direction(SPECIAL.sub("", token)))]
    return sum(found != "L" for found in directions) * 2 > len(directions)


def _direction(text: str) -> str:
    """The direction of the first letter that has one: L, R or AL; empty where none has."""
    return next((d for c in text if (d := unicodedata.bidirectional(c)) in ("L", "R", "AL")), "")
