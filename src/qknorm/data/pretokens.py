"""The words subwords are made within: how a line is cut before any merge, and how a word is spelt."""

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Literal

Kind = Literal["words", "raw"]
"""`words`: text already tokenised, words set apart by spaces. `raw`: ordinary text, kept to the byte."""

JOINER = "@@"
UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""Letters of scripts that set no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana and Han."""


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
    """``split_raw``, with the digits of a number and the parts of an emoji together: a reader's words.

    Of scripts that set no spaces between words each letter, with its marks, stands for one.
    """
    words: list[str] = []
    for word in split_raw(line):
        marks = next((i for i, character in enumerate(word) if not _is_mark(character)), len(word))
        if marks:  # they are on what stands before them
            words[-1] += word[:marks]
        rest = word[marks:]
        if rest and words and _goes_on(words[-1], rest):
            words[-1] += rest
        elif rest:
            words += _letter_by_letter(rest) if UNSPACED.search(rest) else [rest]
    return words


def _goes_on(before: str, word: str) -> bool:
    """Whether a word is the next digit of a number, or the next part of an emoji: joined to it, or a tone."""
    if word.isdecimal():
        return before[-1].isdecimal()
    return "🏻" <= word <= "🏿" or (before[-1] == "\u200d" and unicodedata.category(word[0]) == "So")


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M" or character in "\u200c\u200d"


def _letter_by_letter(word: str) -> list[str]:
    """A word cut around each letter of a script without spaces; marks stay with what they are on."""
    parts = [word[0]]
    for before, character in pairwise(word):
        if before == " " or _is_mark(character) or not (UNSPACED.match(before) or UNSPACED.match(character)):
            parts[-1] += character
        else:
            parts.append(character)
    return parts


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
