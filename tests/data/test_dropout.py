"""BPE-dropout of a corpus."""

from pathlib import Path

import numpy as np
import pytest

from qknorm.data.dropout import LARGEST_POOL, BpeDropout
from qknorm.data.sentences import SIDES, EncodedPairs
from qknorm.data.subwords import Subwords


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(0)
    for name, stems in (("s", ["window", "widow", "lower", "lowest"]), ("t", ["fenster", "witwe", "tiefer"])):
        lines = [" ".join(generator.choice(stems, size=generator.integers(1, 9))) for _ in range(300)]
        lines[7] = ""
        (folder / name).write_text("".join(line + "\n" for line in lines))
    return folder / "s", folder / "t"


@pytest.fixture(scope="module")
def subwords(files: tuple[Path, Path]) -> Subwords:
    return Subwords.learn(*files, operations=60, for_dropout=SIDES)


def same(one: EncodedPairs, other: EncodedPairs) -> bool:
    return all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.offsets, b.offsets)
        for a, b in ((one.source, other.source), (one.target, other.target))
    )


def test_a_pass_is_the_same_for_the_same_seed_and_number(
    files: tuple[Path, Path], subwords: Subwords
) -> None:
    first, again = (BpeDropout(*files, subwords, 0.2, seed=3) for _ in range(2))
    third = first.pairs(3)
    assert not same(first.pairs(4), third)
    assert same(again.pairs(3), third)
    assert not same(BpeDropout(*files, subwords, 0.2, seed=4).pairs(3), third)


def test_every_pass_is_the_same_text_in_the_sides_own_subwords(
    files: tuple[Path, Path], subwords: Subwords
) -> None:
    texts = [[line for line in file.read_text().split("\n") if line] for file in files]
    dropout = BpeDropout(*files, subwords, 0.3, seed=1)
    for number in range(3):
        pairs = dropout.pairs(number)
        assert subwords.decode([pairs.source[i] for i in range(len(pairs))]) == texts[0]
        assert subwords.decode([pairs.target[i] for i in range(len(pairs))]) == texts[1]
        assert subwords.source_mask[pairs.source.ids].all() and subwords.target_mask[pairs.target.ids].all()


def test_rate_0_is_plain_encoding(files: tuple[Path, Path], subwords: Subwords) -> None:
    pairs = BpeDropout(*files, subwords, 0.0, seed=1).pairs(0)
    lines = [line for line in files[0].read_text().split("\n") if line]
    assert [ids.tolist() for ids in (pairs.source[i] for i in range(len(pairs)))] == subwords.encode(
        lines, "source"
    )


def test_one_side_alone(files: tuple[Path, Path]) -> None:
    lines = [[line for line in file.read_text().split("\n") if line] for file in files]
    for dropped, other in (SIDES, SIDES[::-1]):
        subwords = Subwords.learn(*files, operations=60, for_dropout=[dropped])
        pairs = BpeDropout(*files, subwords, 0.3, seed=1, sides=[dropped]).pairs(0)
        for side, text in zip(SIDES, lines, strict=True):
            found = [ids.tolist() for ids in map(getattr(pairs, side).__getitem__, range(len(pairs)))]
            assert (found == subwords.encode(text, side)) == (side == other)
            assert subwords.decode(found) == text
        plain = Subwords.learn(*files, operations=60)
        mask = plain.source_mask if other == "source" else plain.target_mask
        kept = subwords.source_mask if other == "source" else subwords.target_mask
        assert kept.sum() == mask.sum()  # the other side has no subwords more


def test_rare_words_may_stay_as_they_are(tmp_path: Path) -> None:
    """Rare on their own side: what the other has does not count."""
    lines = [["window lower"] * 20 + ["lowest"] * 9, ["lowest tiefer"] * 10 + ["fenster"] * 19]
    files = tmp_path / "s", tmp_path / "t"
    for file, text in zip(files, lines, strict=True):
        file.write_text("".join(line + "\n" for line in text))
    subwords = Subwords.learn(*files, operations=60, for_dropout=SIDES)
    found = BpeDropout(*files, subwords, 0.5, seed=1, least=10).pairs(0)
    cuts: dict[tuple[str, str], set[str]] = {}
    for i in range(len(found)):
        for side, ids in zip(SIDES, found[i], strict=True):
            for word in " ".join(subwords.pieces(ids)).replace("@@ ", "@@").split(" "):
                cuts.setdefault((side, word.replace("@@", "")), set()).add(word)
    whole = " ".join(subwords.pieces(subwords.encode(["lowest"], "source")[0])).replace("@@ ", "@@")
    assert cuts.pop(("source", "lowest")) == {whole}
    assert {len(seen) > 1 for seen in cuts.values()} == {True} and len(cuts) == 5


def test_occurrences_of_a_word_differ_within_a_pass(files: tuple[Path, Path], subwords: Subwords) -> None:
    pairs = BpeDropout(*files, subwords, 0.2, seed=1).pairs(0)
    spellings = set()
    for i in range(len(pairs)):
        pieces = " ".join(subwords.pieces(pairs.source[i])).replace("@@ ", "@@")
        spellings |= {word for word in pieces.split(" ") if word.replace("@@", "") == "window"}
    assert 3 < len(spellings) <= LARGEST_POOL


def test_chunks_join_without_a_seam(
    files: tuple[Path, Path], subwords: Subwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qknorm.data.dropout._CHUNK", 7)
    pairs = BpeDropout(*files, subwords, 0.2, seed=1).pairs(0)
    lines = [line for line in files[1].read_text().split("\n") if line]
    assert subwords.decode([pairs.target[i] for i in range(len(pairs))]) == lines


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_impossible_rates_are_refused(files: tuple[Path, Path], subwords: Subwords, rate: float) -> None:
    with pytest.raises(ValueError, match="dropout rate"):
        BpeDropout(*files, subwords, rate, seed=1)
