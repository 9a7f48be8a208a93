"""Everything wrong with a corpus, found before training starts and told at once."""

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np

from qknorm.data.text import blocks, different_lengths, fault, rows
from qknorm.errors import UserError

Files = tuple[str | Path, str | Path]
"""A source file and its target file."""

LONG_WORDS = 250
LONG_BYTES = 4000
_MANY_LONG = 0.001  # warn when more than this share of the pairs is very long
_MANY_IDENTICAL = 0.01
"""Share of pairs with the same text on both sides to warn from; names and numbers alone come to less."""
_INTEGERS = re.compile(rb"^ *[0-9][0-9 ]*\r?$", re.MULTILINE)  # a line of them only
_NEARLY_ALL = 0.95  # files of ids: this share of the lines with text is integers only


@dataclass
class SplitCounts:
    """What one split (train, dev or test) holds."""

    pairs: int = 0
    blank: int = 0
    """Pairs with nothing on one of the sides: dropped from train, kept in dev and test."""
    identical: int = 0
    """Pairs whose two sides are the same."""
    long: int = 0
    duplicates: int = 0
    """Pairs that stood earlier in the split."""
    sources_in_train: int = 0
    pairs_in_train: int = 0

    @property
    def usable(self) -> int:
        """Pairs with text on both sides."""
        return self.pairs - self.blank


@dataclass
class CorpusReport:
    """What `check_corpus` found: errors that forbid training, warnings that do not, and counts."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    counts: dict[str, SplitCounts] = field(default_factory=dict)

    def raise_if_broken(self) -> None:
        """Raise one UserError with every error, a line each; do nothing where there is none."""
        if self.errors:
            raise UserError("\n".join(self.errors))


def check_corpus(train: Files, dev: Files | None = None, test: Files | None = None) -> CorpusReport:
    """Read every file once and report all that is wrong. Memory does not grow with the text of train."""
    report = CorpusReport()
    held_out = []
    for name, files in (("dev", dev), ("test", test)):
        if files is not None:
            known = _Known()
            _Scan(name, files, report, known).run()
            held_out.append((name, files, known))
    _Scan("train", train, report, _Known(), [known for _, _, known in held_out]).run()
    for name, files, known in held_out:
        known.report_overlap(name, files, train, report)
    report.counts = {name: report.counts[name] for name in ("train", "dev", "test") if name in report.counts}
    return report


class _Known:
    """The sentences of a split as 64-bit hashes, and where those of dev or test were met in train."""

    def __init__(self) -> None:
        self.sources = array("q")
        self.pairs = array("q")
        self.numbers = array("Q")
        self._met_sources: dict[int, int] = {}
        self._met_pairs: dict[int, int] = {}
        self._source_set: frozenset[int] | None = None
        self._pair_set: frozenset[int] = frozenset()

    def add(self, source: int, pair: int, number: int) -> None:
        self.sources.append(source)
        self.pairs.append(pair)
        self.numbers.append(number)

    def meet(self, source: int, pair: int, number: int) -> None:
        """Note a train pair that is here too."""
        if self._source_set is None:
            self._source_set, self._pair_set = frozenset(self.sources), frozenset(self.pairs)
        if source in self._source_set:
            self._met_sources.setdefault(source, number)
            if pair in self._pair_set:
                self._met_pairs.setdefault(pair, number)

    def report_overlap(self, name: str, files: Files, train: Files, report: CorpusReport) -> None:
        counts = report.counts[name]
        sources = [i for i, source in enumerate(self.sources) if source in self._met_sources]
        counts.sources_in_train = len(sources)
        counts.pairs_in_train = sum(pair in self._met_pairs for pair in self.pairs)
        if sources:
            first = sources[0]
            report.warnings.append(
                f"{len(sources):,} of {counts.pairs:,} {name} source sentences are in train too, "
                f"{counts.pairs_in_train:,} of them with the same translation, so scores on {name} flatter "
                f"(first: {files[0]} line {self.numbers[first]} is "
                f"{train[0]} line {self._met_sources[self.sources[first]]})."
            )

    def duplicates(self) -> tuple[int, int]:
        """How many pairs stood earlier, and the line of the first that did."""
        hashes = np.frombuffer(self.pairs, dtype=np.int64)
        order = np.argsort(hashes, kind="stable")
        again = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
        return len(again), self.numbers[int(again.min())] if len(again) else 0


@dataclass
class _Tally:
    """How often something was met, and the first line where."""

    count: int = 0
    first: int = 0

    def add(self, number: int) -> None:
        self.count += 1
        self.first = self.first or number


class _Scan:
    """One reading of the two files of a split."""

    def __init__(
        self,
        name: str,
        files: Files,
        report: CorpusReport,
        known: _Known,
        held_out: list[_Known] | None = None,
    ) -> None:
        self.name = name
        self.files = files
        self.report = report
        self.known = known
        self.held_out = held_out or []
        self.counts = report.counts.setdefault(name, SplitCounts())
        self.failed = [False, False]
        self.faults: list[dict[str, _Tally]] = [{}, {}]
        self.blank, self.identical, self.long = _Tally(), _Tally(), _Tally()
        self.differing = False
        self.lines = [0, 0]
        self.integers = [0, 0]

    def run(self) -> None:
        for number, (source, target) in enumerate(zip_longest(self._side(0), self._side(1)), 1):
            if source is not None and target is not None:
                self._pair(number, source, target)
        self.counts.pairs = min(self.lines)
        self.counts.blank, self.counts.identical = self.blank.count, self.identical.count
        self.counts.long = self.long.count
        self._report_errors()
        if not any(self.failed):
            self._report_warnings()

    def _side(self, place: int) -> Iterator[bytes]:
        """The lines of one file; a file that cannot be read is an error and ends here."""
        try:
            for block in blocks(self.files[place]):
                lines = rows(block)
                if fault(block) is not None:
                    self._find_faults(place, lines)
                self.lines[place] += len(lines)
                self.integers[place] += len(_INTEGERS.findall(block))
                yield from lines
        except UserError as error:
            self.failed[place] = True
            self.report.errors.append(str(error))

    def _find_faults(self, place: int, lines: list[bytes]) -> None:
        """Note those of the next lines of a file that are not text."""
        for number, line in enumerate(lines, self.lines[place] + 1):
            if problem := fault(line):
                self.faults[place].setdefault(problem, _Tally()).add(number)

    def _pair(self, number: int, source: bytes, target: bytes) -> None:
        same = source == target
        self.differing = self.differing or not same
        if _is_blank(source) or _is_blank(target):
            self.blank.add(number)
            return
        if same:
            self.identical.add(number)
        if _is_long(source) or _is_long(target):
            self.long.add(number)
        hashed = hash(source)
        pair = hash(source + b"\n" + target)
        self.known.add(hashed, pair, number)
        for known in self.held_out:
            known.meet(hashed, pair, number)

    def _report_errors(self) -> None:
        errors = self.report.errors
        for path, faults in zip(self.files, self.faults, strict=True):
            for problem, tally in faults.items():
                more = f" ({tally.count - 1:,} more lines like it)" if tally.count > 1 else ""
                errors.append(f"{path} line {tally.first} {problem}{more}.")
        for path, count, failed in zip(self.files, self.lines, self.failed, strict=True):
            if not count and not failed:
                errors.append(f"{path} is empty.")
        if any(self.failed) or not all(self.lines):
            return
        source, target = self.files
        if self.lines[0] != self.lines[1]:
            errors.append(different_lengths(source, target, *self.lines))
        elif not self.differing:
            errors.append(
                f"{source} and {target} have the same content from line 1 to the end; "
                "one of them must be the translation."
            )
        if not self.counts.usable:
            errors.append(f"{source} and {target} have no pair with text on both sides.")
        elif all(integers >= _NEARLY_ALL * self.counts.usable for integers in self.integers):
            errors.append(
                f"{source} and {target} hold ids instead of text: nearly every line from line 1 on is only "
                "integers; give the sentences themselves, subwords are made from them here."
            )

    def _report_warnings(self) -> None:
        source, target = self.files
        total = self.counts.pairs
        self.counts.duplicates, first = self.known.duplicates()
        found = [
            (
                self.blank.count,
                self.blank.first,
                "have an empty side and are " + ("dropped" if self.name == "train" else "kept"),
            ),
        ]
        if self.identical.count > _MANY_IDENTICAL * total:
            found.append((self.identical.count, self.identical.first, "have the same text on both sides"))
        if self.name == "train":
            found.append((self.counts.duplicates, first, "stand in the file more than once"))
        if self.long.count > _MANY_LONG * total:
            what = f"are very long (over {LONG_WORDS} words or {LONG_BYTES:,} bytes)"
            found.append((self.long.count, self.long.first, what))
        for count, line, what in found:
            if count:
                self.report.warnings.append(
                    f"{count:,} of {total:,} {self.name} pairs {what} "
                    f"(first: {source}, {target} line {line})."
                )


def _is_blank(line: bytes) -> bool:
    if b"!" <= line[:1] <= b"~":  # begins with a visible character, as nearly all lines do
        return False
    return not line.strip() or not line.decode("utf-8", errors="replace").strip()


def _is_long(line: bytes) -> bool:
    return len(line) > LONG_BYTES or (len(line) >= LONG_WORDS and line.count(b" ") >= LONG_WORDS)
