"""The words subwords are made within: how a line is cut before any merge, and how a word is spelt."""

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Literal

Kind = Literal["words", "raw"]
"""`words`: text already tokenised, words set apart by spaces. `raw`: ordinary text, kept to the byte."""

JOINER = "@@"


def split_words(line: str) -> list[str]:
    """Words of tokenised text. Only ASCII white space parts them: U+2028 or a no-break space does not."""
    for space in "\t\r\v\f":
        if space in line:
            line = line.replace(space, " ")
    return list(filter(None, line.split(" ")))


@cache
def _raw_pattern() -> re.Pattern[str]:
    """Letters, single digits, single marks of punctuation: each with the one space before it, if any.

    Of a run of spaces all but the last stand alone. Every character falls under one branch, so the
    pieces joined are the line.
    """
    return re.compile(rf" ?[{_letters()}]+| ?\d| ?(?:[^\w\s]|_)| +(?= )|\s")


def _letters() -> str:
    """All that words are made of, as ranges for a character class.

    Combining marks and the zero-width joiners are in it (Hebrew points, Arabic vowels, Persian and Indic
    spelling), though Python's `\\w` leaves them out.
    """
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category[0] in "LM" or category in ("Nl", "No") or chr(code) in "\u200c\u200d":
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


def split_raw(line: str) -> list[str]:
    """Pre-tokens of ordinary text: joined, they are a space and then the line.

    The space put in front makes a word the same at the start of a line as inside it; decoding takes
    it off again.
    """
    return _raw_pattern().findall(" " + line) if line else []


def raw_words(line: str) -> list[str]:
    """``split_raw``, with the digits of a number together: what a reader takes for words."""
    words: list[str] = []
    for word in split_raw(line):
        if words and word.isdecimal() and words[-1][-1].isdecimal():
            words[-1] += word
        else:
            words.append(word)
    return words


def splitter(kind: Kind) -> Callable[[str], list[str]]:
    """The function that cuts a line of this kind."""
    return split_words if kind == "words" else split_raw


def spell_word(word: str) -> list[str]:
    """A word's symbols: its characters, all but the last with the joiner, as subword-nmt writes them."""
    return [character + JOINER for character in word[:-1]] + [word[-1]]


def byte_symbols(character: str) -> list[str]:
    """A character as the symbols of its UTF-8 bytes."""
    return [f"<0x{byte:02X}>" for byte in character.encode("utf-8")]


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
