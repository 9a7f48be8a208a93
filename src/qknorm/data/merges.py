"""Byte-pair merges over symbols: learnt and applied by HF `tokenizers`, undone and dropped out here.

HF's BPE sees each symbol as one private character, so it can neither split nor normalise what a symbol
stands for. A *unit* is the unknown symbol (0), a symbol (1 … n) or what a merge makes (n + 1 …).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from qknorm.data.sentences import Sentences, offsets_of, ranges

UNKNOWN = 0
_FIRST = 0x10000  # the character of unit 0; from here on every code point is a character, none a space
_UNKNOWN_CHARACTER = chr(_FIRST + UNKNOWN)
_REPEATS = 256
_ALIKE = 1 << 13


class Merges:
    """An ordered list of merges of units, and what it makes of words."""

    def __init__(self, symbols: Sequence[str], merges: Sequence[tuple[int, int]]) -> None:
        self.symbols = list(symbols)
        self.merges = list(merges)
        self._character = {symbol: chr(_FIRST + unit) for unit, symbol in enumerate(self.symbols, 1)}
        names = [chr(_FIRST + unit) for unit in range(len(self.symbols) + 1)]
        unit_of = {name: unit for unit, name in enumerate(names)}
        self.parts: list[tuple[int, int] | None] = [None] * len(names)
        """What each unit was merged from; None for a symbol."""
        products = []
        for left, right in self.merges:
            name = names[left] + names[right]
            if name not in unit_of:  # two merges may make the same unit: ab + c and a + bc
                unit_of[name] = len(names)
                names.append(name)
                self.parts.append((left, right))
            products.append(unit_of[name])
        self._model = models.BPE(unit_of, [(names[left], names[right]) for left, right in self.merges])
        pairs = np.array(self.merges, dtype=np.int64).reshape(-1, 2)
        keys = pairs[:, 0] * len(names) + pairs[:, 1]
        self._order = np.argsort(keys)
        self._keys = keys[self._order]
        self._products = np.array(products, dtype=np.int64)

    @classmethod
    def learn(cls, symbols: Sequence[str], words: Mapping[tuple[str, ...], int], operations: int) -> "Merges":
        """The `operations` most frequent merges in words with their counts; pairs met once are not merged."""
        blank = cls(symbols, [])
        spelt = {blank.spell(word): count for word, count in words.items()}
        trainer = trainers.BpeTrainer(
            vocab_size=len(symbols) + operations, min_frequency=2, show_progress=False
        )
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
        tokenizer.train_from_iterator(_repeated(spelt), trainer)
        learnt = json.loads(tokenizer.to_str())["model"]["merges"][:operations]
        unit_of = {chr(_FIRST + unit): unit for unit in range(len(symbols) + 1)}
        merges = []
        for left, right in learnt:
            merges.append((unit_of[left], unit_of[right]))
            unit_of.setdefault(left + right, len(unit_of))
        return cls(symbols, merges)

    def __len__(self) -> int:
        return len(self.parts)

    def spell(self, word: Iterable[str]) -> str:
        """A word of symbols in private characters; a symbol not in the list is the unknown one."""
        return "".join([self._character.get(symbol, _UNKNOWN_CHARACTER) for symbol in word])

    def segment(self, spelt: str) -> list[int]:
        """The units of a spelt word after all merges."""
        return [token.id for token in self._model.tokenize(spelt)]

    def segment_with_dropout(
        self,
        spelt: Sequence[str],
        repeats: NDArray[np.int64],
        rate: float,
        generator: np.random.Generator,
    ) -> Sentences:
        """The units of each word, `repeats` times over, when a merge is skipped at `rate` at every step.

        BPE-dropout (Provilkov et al. 2020), drawn as HF draws it; but HF's cannot be seeded. All words of
        one length are worked on together: each step takes one merge in every row, so rows stay equal.
        """
        sizes = np.fromiter(map(len, spelt), np.int64, len(spelt))
        places = offsets_of(repeats)
        lengths = np.zeros(places[-1], np.int64)
        finished: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        never = len(self.merges)
        for words in _alike(sizes):
            size = int(sizes[words[0]])
            text = "".join([spelt[word] for word in words.tolist()])
            units = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.int64) - _FIRST
            units = np.repeat(units.reshape(len(words), size), repeats[words], axis=0)
            rows = ranges(places[words], repeats[words])
            ranks = self._ranks(units[:, :-1], units[:, 1:])
            while len(rows):
                offered = np.where(generator.random(ranks.shape) < rate, never, ranks)
                live = offered.min(axis=1, initial=never) < never
                finished.append((rows[~live], units[~live]))
                lengths[rows[~live]] = units.shape[1]
                rows = rows[live]
                if len(rows):
                    units, ranks = self._merge(units[live], ranks[live], offered[live].argmin(axis=1))
        offsets = offsets_of(lengths)
        flat = np.empty(offsets[-1], np.int64)
        for rows, units in finished:
            flat[offsets[rows][:, None] + np.arange(units.shape[1])] = units
        return Sentences(flat, offsets)

    def _merge(
        self, units: NDArray[np.int64], ranks: NDArray[np.int64], at: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Take the merge at column `at` of each row; both arrays lose a column."""
        count, width = units.shape
        row = np.arange(count)
        units[row, at] = self._products[ranks[row, at]]
        units = units[np.arange(width) != (at + 1)[:, None]].reshape(count, width - 1)
        ranks = ranks[np.arange(width - 1) != at[:, None]].reshape(count, width - 2)
        for shift in (-1, 0):  # the pairs that end and begin with the new unit
            pair = at + shift
            has = (pair >= 0) & (pair < width - 2)
            r, p = row[has], pair[has]
            ranks[r, p] = self._ranks(units[r, p], units[r, p + 1])
        return units, ranks

    def _ranks(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each pair's place in the list of merges; the list's length where it is not in it."""
        if not self.merges:
            return np.zeros(left.shape, np.int64)
        key = left * len(self) + right
        place = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return np.where(self._keys[place] == key, self._order[place], len(self.merges))


def _alike(sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The places of words of one length, some thousands at a time to bound memory; empty words left out."""
    for size in np.unique(sizes[sizes > 0]).tolist():
        (words,) = np.nonzero(sizes == size)
        for start in range(0, len(words), _ALIKE):
            yield words[start : start + _ALIKE]


def _repeated(counts: Mapping[str, int]) -> Iterator[str]:
    """Each word as often as it counts, many to a line: the trainer takes text, not counts.

    A word of one symbol has no pair to count and comes once, for the symbol's sake.
    """
    for word, count in counts.items():
        whole, rest = divmod(count if len(word) > 1 else 1, _REPEATS)
        for _ in range(whole):
            yield " ".join([word] * _REPEATS)
        if rest:
            yield " ".join([word] * rest)
