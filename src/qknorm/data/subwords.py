"""Subwords: text to ids and back, one vocabulary for both languages."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qknorm.data import text
from qknorm.data.merges import UNKNOWN, Merges
from qknorm.data.pretokens import BYTES, JOINER, Kind, byte_symbols, raw_words, spell_word, splitter
from qknorm.data.sentences import SIDES, Sentences, Side, offsets_of
from qknorm.errors import UserError
from qknorm.ids import BOS, EOS, PAD, UNK

_FORMAT = 1
_SPECIALS = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
_RARE = 1e-6  # raw text: a character rarer than this among all is spelt in bytes
_CACHED_WORDS = 1 << 19
_CHUNK = 1 << 12  # lines counted at a time


class Subwords:
    """Joint byte-pair subwords (Sennrich et al. 2016), each language restricted to its own.

    `words` is for text already tokenised: merges stay inside words, pieces that do not end one are
    written with `@@` as subword-nmt and fastBPE do, a character never met in training is `<unk>`.

    `raw` is for ordinary text and gives back exactly what went in. It is built of characters, not bytes:
    in scripts outside ASCII a byte says nothing by itself, and on small corpora merges would be spent on
    putting letters together. Characters rarer than one in a million, or new, are spelt in UTF-8 bytes,
    so nothing is unknown. The space before a word belongs to it; digits and punctuation stand alone, so
    that a word is the same before a comma and a number never needs to have been seen.

    Text is never normalised.
    """

    def __init__(
        self, kind: Kind, merges: Merges, seen_source: Iterable[int], seen_target: Iterable[int]
    ) -> None:
        """Of merged units only those seen on a side of the training text are that side's subwords."""
        self.kind: Kind = kind
        self._merges = merges
        self._split = splitter(kind)
        self._characters = frozenset(merges.symbols)
        symbols = len(merges.symbols)
        self._seen = {"source": set(seen_source), "target": set(seen_target)}
        kept = [*range(1, symbols + 1), *sorted(self._seen["source"] | self._seen["target"])]
        spelling = _spellings(merges)
        first = len(_SPECIALS)
        self._id_of_unit = {unit: first + place for place, unit in enumerate(kept)} | {UNKNOWN: UNK}
        self._symbols_of_id = {self._id_of_unit[unit]: spelling[unit] for unit in kept}
        self._pieces = [_SPECIALS[i] for i in range(first)] + [self._show(spelling[unit]) for unit in kept]
        self._words: dict[Side, _Words] = {side: _Words(self, side) for side in SIDES}
        self._tables: dict[Side, list[tuple[int, ...]]] = {side: self._table(side) for side in SIDES}
        self.source_mask = self._mask("source")
        """(V,) true for the subwords that source sentences are made of."""
        self.target_mask = self._mask("target")
        """(V,) true for what may be written in a target sentence: its subwords, UNK and EOS."""
        self._texts = self._decoding_texts()

    @classmethod
    def learn(
        cls,
        source: str | Path | Iterable[str],
        target: str | Path | Iterable[str],
        kind: Kind = "words",
        operations: int = 8000,
        sample_power: float = 0.5,
        seed: int = 1,
        for_dropout: Collection[Side] = (),
    ) -> "Subwords":
        """Learn from two files (a `str` is a path) or two collections of lines.

        Merges are learnt on as many lines as both have together, shared out in proportion to
        n^sample_power: with unequal sides the larger is sampled and the smaller repeated, with equal
        sides every line counts once. Characters, and each side's subwords, come from all lines.

        BPE-dropout needs more subwords: sides `for_dropout` also keep those that their words are merged
        through. Without them a word with one merge dropped would often fall apart into characters.
        """
        split = splitter(kind)
        texts = [side if isinstance(side, str | Path) else list(side) for side in (source, target)]
        counts = [text.count_lines(side) if isinstance(side, str | Path) else len(side) for side in texts]
        if not all(counts):
            raise UserError("Subwords cannot be learnt: there is no text on one of the sides.")
        total = sum(counts)
        weights = [count**sample_power for count in counts]
        everything: list[Counter[str]] = []
        sample: Counter[str] = Counter()
        for place, (lines, count, weight) in enumerate(zip(texts, counts, weights, strict=True)):
            whole, rest = divmod(round(total * weight / sum(weights)), count)
            extra = np.zeros(count, bool)
            extra[np.random.default_rng([seed, place]).permutation(count)[:rest]] = True
            words, more = _count_words(lines, split, extra)
            for word in words:
                sample[word] += whole * words[word] + more[word]
            everything.append(words)
        if not all(everything):
            raise UserError("Subwords cannot be learnt: every line of one of the sides is empty.")
        symbols = _alphabet(kind, everything[0] + everything[1])
        known = frozenset(symbols)
        spelt = {tuple(_spell(kind, word, known)): count for word, count in sample.items() if count}
        merges = Merges.learn(symbols, spelt, operations)
        units = [
            {word: merges.segment(merges.spell(_spell(kind, word, known))) for word in words}
            for words in everything
        ]
        seen = [set(chain.from_iterable(side.values())) for side in units]
        seen = [
            _with_parts(merges, units) if side in for_dropout else units
            for side, units in zip(SIDES, seen, strict=True)
        ]
        merged = [{unit for unit in side if merges.parts[unit]} for side in seen]
        learnt = cls(kind, merges, *merged)
        for side, segmented in zip(SIDES, units, strict=True):
            learnt._words[side].remember(segmented)
        return learnt

    @property
    def size(self) -> int:
        """How many ids there are, the four special ones included."""
        return len(self._pieces)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest integers that hold every id."""
        return np.dtype(np.uint16 if self.size <= 1 << 16 else np.int32)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides the ids; the same for a saved and loaded copy."""
        return _digest(self._content())

    def encode(self, lines: Iterable[str], side: Side) -> list[list[int]]:
        """Ids of each line in this side's subwords, without BOS and EOS."""
        split, ids = self._split, self._words[side].__getitem__
        return [list(chain.from_iterable(map(ids, split(line)))) for line in lines]

    def ids_of_word(self, word: str, side: Side) -> tuple[int, ...]:
        """Ids of one of the ``words`` in this side's subwords."""
        return self._words[side][word]

    def decode(self, sentences: Iterable[Sequence[int] | NDArray[np.integer[Any]]]) -> list[str]:
        """The text of each list of ids. PAD, BOS and EOS are left out; UNK is written `<unk>`."""
        joined = (b"".join([self._texts[i] for i in ids]) for ids in sentences)
        decoded = (line.decode("utf-8", errors="replace") for line in joined)
        if self.kind == "words":
            return [line.removesuffix(" ") for line in decoded]
        return [line.removeprefix(" ") for line in decoded]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id as it is shown: `@@` after a piece that goes on, or `▁` for a space of raw text."""
        return [self._pieces[i] for i in ids]

    def word_numbers(self, ids: Sequence[int]) -> list[int]:
        """The number of the word, rising from 0, that each id is part of; see ``raw_words`` for raw text."""
        texts = [self._texts[i] for i in ids]
        if self.kind == "words":
            ends = [text.endswith(b" ") for text in texts[:-1]]
            return [0, *np.cumsum(ends).tolist()] if ids else []
        line = b"".join(texts).decode("utf-8", errors="surrogateescape")
        words = raw_words(line.removeprefix(" "))
        sizes = [len(word.encode("utf-8", errors="surrogateescape")) for word in words]
        ends_of_words = np.cumsum(sizes) - (not line.startswith(" "))  # cutting puts a space in front
        ends_of_pieces = np.cumsum([len(text) for text in texts])
        return [int(number) for number in np.searchsorted(ends_of_words, ends_of_pieces)]

    def unk_rate(self, lines: Iterable[str], side: Side) -> float:
        """The share of unknown subwords in these lines."""
        total = unknown = 0
        for line in lines:
            (ids,) = self.encode([line], side)
            total += len(ids)
            unknown += ids.count(UNK)
        return unknown / total if total else 0.0

    def words(self, line: str) -> list[str]:
        """The words (pre-tokens) of a line: what each is made of does not depend on its neighbours."""
        return self._split(line)

    def dropout(
        self,
        words: Sequence[str],
        side: Side,
        repeats: NDArray[np.int64],
        rate: float,
        generator: np.random.Generator,
    ) -> Sentences:
        """Ids of each word, `repeats[word]` times over, with merges dropped at `rate` (BPE-dropout)."""
        spelt = [self._merges.spell(_spell(self.kind, word, self._characters)) for word in words]
        units = self._merges.segment_with_dropout(spelt, repeats, rate, generator)
        ids, sizes = Sentences.of(self._tables[side]).take(units.ids)
        return Sentences(ids, offsets_of(sizes)[units.offsets])

    def save(self, path: str | Path) -> None:
        """Write one JSON file, whole or not at all."""
        content = self._content()
        fields = content | {"pieces": self._pieces, "sha256": _digest(content)}
        rows = [
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()
        ]
        text.write_atomic(path, "{\n" + ",\n".join(rows) + "\n}\n")

    @classmethod
    def load(cls, path: str | Path) -> "Subwords":
        """Read what `save` wrote; a file that is broken or was changed is refused."""
        try:
            fields = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise UserError(f"The subwords {path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise UserError(f"{path} is not a whole file of subwords; restore or learn it again.") from error
        if not isinstance(fields, dict) or "format" not in fields:
            raise UserError(f"{path} is not a file of subwords.")
        if fields["format"] != _FORMAT:
            raise UserError(
                f"{path} holds subwords in format {fields['format']}; this version of qknorm reads {_FORMAT}."
            )
        pieces, digest = fields.pop("pieces", None), fields.pop("sha256", None)
        if digest != _digest(fields):
            raise UserError(f"The subwords {path} were changed since they were saved; restore the file.")
        merges = Merges(fields["symbols"], [(left, right) for left, right in fields["merges"]])
        subwords = cls(fields["kind"], merges, fields["source"], fields["target"])
        if pieces != subwords._pieces:
            raise UserError(f"The subwords {path} were changed since they were saved; restore the file.")
        return subwords

    def _content(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "kind": self.kind,
            "symbols": self._merges.symbols,
            "merges": self._merges.merges,
            "source": sorted(self._seen["source"]),
            "target": sorted(self._seen["target"]),
        }

    def _table(self, side: Side) -> list[tuple[int, ...]]:
        """For each unit the ids this side has for it: merges that make a unit not its own are undone."""
        table: list[tuple[int, ...]] = []
        for unit, parts in enumerate(self._merges.parts):
            if parts is None or unit in self._seen[side]:
                table.append((self._id_of_unit[unit],))
            else:
                table.append(table[parts[0]] + table[parts[1]])
        return table

    def _mask(self, side: Side) -> NDArray[np.bool_]:
        """All that encoding this side can give, and EOS. Bytes that no line of UTF-8 has are left out."""
        mask = np.zeros(self.size, bool)
        mask[list(chain.from_iterable(self._tables[side]))] = True
        mask[[UNK, EOS]] = True
        if self.kind == "raw":
            impossible = [BYTES[byte] for byte in (0x0A, 0xC0, 0xC1, *range(0xF5, 0x100))]
            mask[[i for i, symbols in self._symbols_of_id.items() if symbols[0] in impossible]] = False
        return mask

    def _show(self, symbols: list[str]) -> str:
        if self.kind == "words":
            return "".join([symbol.removesuffix(JOINER) for symbol in symbols[:-1]]) + symbols[-1]
        return "".join(symbols).replace(" ", "▁")

    def _decoding_texts(self) -> list[bytes]:
        """What each id adds to a line: in `words`, a piece that ends a word brings the space after it."""
        texts = [b""] * len(_SPECIALS)
        texts[UNK] = b"<unk> " if self.kind == "words" else b"<unk>"
        value = {symbol: bytes([byte]) for byte, symbol in enumerate(BYTES)}
        for symbols in self._symbols_of_id.values():
            if self.kind == "raw":
                texts.append(b"".join([value.get(symbol) or symbol.encode("utf-8") for symbol in symbols]))
            else:
                ends = len(symbols[-1]) == 1
                characters = "".join([symbol[0] for symbol in symbols])
                texts.append((characters + " " * ends).encode("utf-8"))
        return texts


class _Words(dict[str, tuple[int, ...]]):
    """The ids of words met on one side, worked out once each; emptied when it has grown too large."""

    def __init__(self, subwords: Subwords, side: Side) -> None:
        super().__init__()
        self._subwords = subwords
        self._side: Side = side

    def __missing__(self, word: str) -> tuple[int, ...]:
        subwords = self._subwords
        merges = subwords._merges
        spelt = merges.spell(_spell(subwords.kind, word, subwords._characters))
        if len(self) >= _CACHED_WORDS:
            self.clear()
        ids = self[word] = self._ids(merges.segment(spelt))
        return ids

    def remember(self, segmented: dict[str, list[int]]) -> None:
        """The units of words are known already; those of as many as there is room for are kept."""
        for word, units in islice(segmented.items(), _CACHED_WORDS):
            self[word] = self._ids(units)

    def _ids(self, units: list[int]) -> tuple[int, ...]:
        table = self._subwords._tables[self._side]
        return tuple(chain.from_iterable([table[unit] for unit in units]))


def _spell(kind: Kind, word: str, known: frozenset[str]) -> list[str]:
    """A word's symbols; in raw text a character that is none is spelt in bytes."""
    if kind == "words":
        return spell_word(word)
    return list(chain.from_iterable([c] if c in known else byte_symbols(c) for c in word))


def _alphabet(kind: Kind, words: Counter[str]) -> list[str]:
    """All symbols, in an order that depends on nothing but the text."""
    if kind == "words":
        return sorted({symbol for word in words for symbol in spell_word(word)})
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    enough = _RARE * characters.total()
    return BYTES + sorted(character for character, count in characters.items() if count >= enough)


def _spellings(merges: Merges) -> list[list[str]]:
    """The symbols of each unit."""
    spellings = [[""]] + [[symbol] for symbol in merges.symbols]
    for parts in merges.parts[len(spellings) :]:
        assert parts is not None
        spellings.append(spellings[parts[0]] + spellings[parts[1]])
    return spellings


def _with_parts(merges: Merges, units: set[int]) -> set[int]:
    """The units and all that they were merged from; parts come before what they make."""
    found = set(units)
    for unit in range(len(merges) - 1, 0, -1):
        if unit in found:
            found.update(merges.parts[unit] or ())
    return found


def _count_words(
    side: str | Path | list[str], split: Callable[[str], list[str]], extra: NDArray[np.bool_]
) -> tuple[Counter[str], Counter[str]]:
    """How often each word occurs in all lines, and in the lines marked as extra."""
    words: Counter[str] = Counter()
    more: Counter[str] = Counter()
    counted = 0
    lines = iter(text.lines(side) if isinstance(side, str | Path) else side)
    for start in range(0, len(extra), _CHUNK):
        marked = extra[start : start + _CHUNK]
        chunk = list(islice(lines, len(marked)))
        words.update(chain.from_iterable(map(split, chunk)))
        if marked.any():
            more.update(chain.from_iterable(map(split, compress(chunk, marked.tolist()))))
        counted += len(chunk)
    if counted != len(extra) or next(lines, None) is not None:
        raise UserError(f"{side} changed while it was being read; start again.")
    return words, more


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
