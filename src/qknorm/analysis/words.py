"""Translations word by word: where they differ, and how they fare with rare words and long sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from qknorm.data.pretokens import raw_words, split_words
from qknorm.scoring import Kind, metrics

WRONG, CHANGED = 1, 2
"""Marks of a word: not where the reference has it; not where the other translation has it."""

FREQUENCIES = (0, 1, 2, 5, 10, 100, 1000)
"""Where the buckets of training frequency begin."""
LENGTHS = (1, 5, 10, 15, 20, 30, 40, 60)
"""Where the buckets of reference length, in words, begin."""

Segments = list[tuple[str, int]]


def tokens(text: str, kind: Kind) -> list[str]:
    """The words of a text, spaces before them included where it is raw."""
    return split_words(text) if kind == "words" else raw_words(text)


def marked(text: str, kind: Kind, reference: str, other: str | None) -> Segments:
    """A translation in pieces, each with its marks; joined, they are its words with their spaces."""
    own = tokens(text, kind)
    wrong = _unmatched(own, tokens(reference, kind))
    changed = [False] * len(own) if other is None else _unmatched(own, tokens(other, kind))
    segments: list[tuple[str, int]] = []
    for place, word in enumerate(own):
        mark = WRONG * wrong[place] + CHANGED * changed[place]
        shown = f" {word}" if kind == "words" else word
        space = shown[: len(shown) - len(shown.lstrip(" "))]
        if segments and segments[-1][1] == mark:
            segments[-1] = segments[-1][0] + shown, mark
            continue
        if space and segments:
            segments.append((space, 0))
        segments.append((shown.lstrip(" "), mark))
    return [segment for segment in segments if segment[0]]


def _unmatched(own: Sequence[str], other: Sequence[str]) -> list[bool]:
    """For each word whether it has no counterpart, in order, in the other text."""
    ours, theirs = [word.strip(" ") for word in own], [word.strip(" ") for word in other]
    found = [True] * len(own)
    for start, _, size in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        found[start : start + size] = [False] * size
    return found


@dataclass(frozen=True)
class Bucket:
    """What falls between two bounds, and how well it is translated."""

    name: str
    count: int
    """Words of the references, or sentences."""
    figures: dict[str, float]


def by_frequency(
    hypotheses: Sequence[str], references: Sequence[str], kind: Kind, training: Counter[str]
) -> list[Bucket]:
    """Precision, recall and F1 of words by how often they stand in the training text's target side.

    A word counts as right as often as both a translation and its reference have it.
    """
    right, said, wanted = Counter[int](), Counter[int](), Counter[int]()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        ours, theirs = _counted(hypothesis, kind), _counted(reference, kind)
        for counts, total in ((ours, said), (theirs, wanted), (ours & theirs, right)):
            for word, count in counts.items():
                total[_bucket(training[word], FREQUENCIES)] += count
    found = []
    for place, name in enumerate(_names(FREQUENCIES)):
        precision = right[place] / said[place] if said[place] else 0.0
        recall = right[place] / wanted[place] if wanted[place] else 0.0
        both = precision + recall
        f1 = 2 * precision * recall / both if both else 0.0
        if wanted[place]:
            found.append(Bucket(name, wanted[place], {"f1": f1, "precision": precision, "recall": recall}))
    return found


def by_length(hypotheses: Sequence[str], references: Sequence[str], kind: Kind) -> list[Bucket]:
    """BLEU (smoothed, of the n-gram orders there are) and chrF by the length of the reference in words."""
    places: dict[int, list[int]] = {}
    for line, reference in enumerate(references):
        length = len(tokens(reference, kind))
        if length:
            places.setdefault(_bucket(length, LENGTHS), []).append(line)
    found = []
    for place, name in enumerate(_names(LENGTHS)):
        lines = places.get(place, [])
        if not lines:
            continue
        ours, theirs = [hypotheses[i] for i in lines], [references[i] for i in lines]
        bleu = metrics.sentence_bleu(kind).corpus_score(ours, [theirs]).score
        chrf = metrics.chrf(theirs).corpus_score(ours, None).score
        found.append(Bucket(name, len(lines), {"bleu": float(bleu), "chrf": float(chrf)}))
    return found


def count_words(lines: Iterable[str], kind: Kind) -> Counter[str]:
    """How often each word stands in a text."""
    found: Counter[str] = Counter()
    for line in lines:
        found.update(_counted(line, kind))
    return found


def _counted(text: str, kind: Kind) -> Counter[str]:
    return Counter(word for token in tokens(text, kind) if (word := token.strip()))


def _bucket(value: int, starts: Sequence[int]) -> int:
    return sum(value >= start for start in starts) - 1


def _names(starts: Sequence[int]) -> list[str]:
    """What the buckets are called: "0", "2–4", "1000+"."""
    named = []
    for start, end in pairwise(starts):
        named.append(str(start) if end - start == 1 else f"{start}–{end - 1}")
    return [*named, f"{starts[-1]}+"]
