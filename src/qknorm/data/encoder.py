"""Many lines to ids at once: a word is looked up, its ids are gathered by numpy."""

from collections.abc import Sequence

import numpy as np

from qknorm.data.sentences import Sentences, Side
from qknorm.data.subwords import Subwords

_END = "\n"  # no line has one, and no word
_KNOWN_WORDS = 1 << 19


class Encoder:
    """``Subwords.encode`` for one side of a corpus."""

    def __init__(self, subwords: Subwords, side: Side) -> None:
        self._subwords = subwords
        self._rows = _Rows(subwords, side)

    def encode(self, lines: Sequence[str]) -> tuple[Sentences, int]:
        """The ids of lines that have no line break, and how many words (pre-tokens) they are."""
        if len(self._rows) > _KNOWN_WORDS:
            self._rows.reset()
        words = self._words(lines)
        numbers = np.fromiter(map(self._rows.__getitem__, words), np.int64, len(words))
        ids, sizes = self._rows.ids().take(numbers)
        ends = np.cumsum(sizes)[numbers == self._rows[_END]]
        return Sentences(ids, np.concatenate([np.zeros(1, np.int64), ends])), len(words) - len(lines)

    def _words(self, lines: Sequence[str]) -> list[str]:
        """The words of all lines, after each line its end."""
        if self._subwords.kind == "words":  # spaces alone part words: all lines are cut like one
            return self._subwords.words("".join([f"{line} {_END} " for line in lines]))
        words: list[str] = []
        for line in lines:
            words += self._subwords.words(line)
            words.append(_END)
        return words


class _Rows(dict[str, int]):
    """Words by number, and the ids of each in one array."""

    def __init__(self, subwords: Subwords, side: Side) -> None:
        super().__init__()
        self._subwords = subwords
        self._side: Side = side
        self.reset()

    def reset(self) -> None:
        """Forget all words."""
        self.clear()
        self[_END] = 0
        self._new: list[tuple[int, ...]] = [()]
        self._known = Sentences.of([], self._subwords.dtype)

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self._new.append(self._subwords.ids_of_word(word, self._side))
        return number

    def ids(self) -> Sentences:
        """The ids of every word so far."""
        if self._new:
            known, new = self._known, Sentences.of(self._new, self._subwords.dtype)
            self._known = Sentences(
                np.concatenate([known.ids, new.ids]),
                np.concatenate([known.offsets, new.offsets[1:] + known.offsets[-1]]),
            )
            self._new.clear()
        return self._known
