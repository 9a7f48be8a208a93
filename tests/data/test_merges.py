"""Learning, applying and dropping merges."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from qknorm.data.merges import Merges

WORDS = Counter({"low": 5, "lower": 2, "newest": 6, "widest": 3, "banana": 4, "aaaa": 3, "bandana": 2})


def plain_merges(words: Counter[str], operations: int) -> list[str]:
    """BPE by its definition: merge the most frequent pair, the pair of smallest symbols at a tie."""
    order = sorted({c for word in words for c in word})
    split = {word: list(word) for word in words}
    merged: list[str] = []
    while len(merged) < operations:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in zip(split[word], split[word][1:], strict=False):
                pairs[pair] += count
        best = min(pairs, key=lambda p: (-pairs[p], order.index(p[0]), order.index(p[1])), default=None)
        if best is None or pairs[best] < 2:
            break
        for word in words:
            split[word] = plain_merge(split[word], best)
        merged.append("".join(best))
        if merged[-1] not in order:
            order.append(merged[-1])
    return merged


def plain_merge(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    result: list[str] = []
    for piece in pieces:
        if result and (result[-1], piece) == pair:
            result[-1] += piece
        else:
            result.append(piece)
    return result


def learn(operations: int) -> Merges:
    symbols = sorted({c for word in WORDS for c in word})
    return Merges.learn(symbols, {tuple(word): count for word, count in WORDS.items()}, operations)


def text_of(merges: Merges, unit: int) -> str:
    parts = merges.parts[unit]
    if parts is None:
        return merges.symbols[unit - 1]
    return text_of(merges, parts[0]) + text_of(merges, parts[1])


@pytest.mark.parametrize("operations", [0, 1, 7, 100])
def test_merges_are_those_of_the_definition(operations: int) -> None:
    merges = learn(operations)
    made = [text_of(merges, left) + text_of(merges, right) for left, right in merges.merges]
    assert made == plain_merges(WORDS, operations)


def test_learning_twice_gives_the_same() -> None:
    assert learn(12).merges == learn(12).merges


def test_a_unit_made_in_two_ways_is_one_unit() -> None:
    merges = Merges(["a", "b", "c"], [(1, 2), (4, 3), (2, 3), (1, 6)])
    assert len(merges) == 7  # unknown, a, b, c, ab, abc, bc
    assert merges.segment(merges.spell("abc")) == [5]


def test_unknown_symbols_are_unit_0_and_stop_merges() -> None:
    merges = learn(100)
    assert [text_of(merges, u) if u else "?" for u in merges.segment(merges.spell("lowXlow"))] == [
        "low",
        "?",
        "low",
    ]


@settings(deadline=None)
@given(st.lists(st.text("abcdelnorstwX", max_size=12), max_size=20))
def test_without_dropping_it_is_hf_segmentation(words: list[str]) -> None:
    merges = learn(15)
    spelt = [merges.spell(word) for word in words]
    once = np.ones(len(words), np.int64)
    segmented = merges.segment_with_dropout(spelt, once, 0.0, np.random.default_rng(0))
    assert [segmented[i].tolist() for i in range(len(words))] == [merges.segment(word) for word in spelt]


def test_dropping_every_merge_spells_the_word() -> None:
    merges = learn(15)
    twice = np.full(2, 2)
    segmented = merges.segment_with_dropout(
        [merges.spell("low"), merges.spell("wo")], twice, 1.0, np.random.default_rng(0)
    )
    assert [len(segmented[i]) for i in range(4)] == [3, 3, 2, 2]
    assert [text_of(merges, u) for u in segmented[2].tolist()] == ["w", "o"]


def test_dropout_has_the_distribution_of_hf_and_unlike_it_a_seed() -> None:
    """The same law: the share of every segmentation of a word agrees with HF's own dropout."""
    merges, count = learn(15), 6000
    spelt = merges.spell("bandana")
    names = {text_of(merges, u): u for u in range(1, len(merges))}
    theirs = models.BPE(
        names, [(text_of(merges, a), text_of(merges, b)) for a, b in merges.merges], dropout=0.3
    )
    hf = Counter(tuple(t.id for t in theirs.tokenize("bandana")) for _ in range(count))

    def ours(seed: int) -> list[tuple[int, ...]]:
        drawn = merges.segment_with_dropout([spelt], np.array([count]), 0.3, np.random.default_rng(seed))
        return [tuple(drawn[i].tolist()) for i in range(count)]

    first = ours(1)
    assert first == ours(1) and first != ours(2)
    shares = Counter(first)
    assert len(shares) > 5
    for segmentation in shares | hf:
        assert abs(shares[segmentation] - hf[segmentation]) < 6 * (count**0.5) / 2
