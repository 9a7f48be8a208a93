"""Text to subwords and back."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.data.merges import Merges
from qknorm.data.sentences import SIDES
from qknorm.data.subwords import Subwords
from qknorm.errors import UserError
from qknorm.ids import BOS, EOS, PAD, UNK

ENGLISH = [
    "the lowest of the low went lower and lower",
    "newest widest , newest lowest .",
    "the widow and the window",
    "low and slow , low and slow",
    "a new widow saw the newest window",
]
OTHER = [
    "самый низкий из низких",
    "новый , новый и новейший",
    "вдова и окно",
    "низкий и новый",
    "окно низкое .",
]
RAW_TEXT = ["Hello, world!", "Hello 2024 worlds…", "שָׁלוֹם עולם", "He said: hello  hello."]


@pytest.fixture(scope="module")
def words() -> Subwords:
    return Subwords.learn(ENGLISH, OTHER, kind="words", operations=60)


@pytest.fixture(scope="module")
def raw() -> Subwords:
    return Subwords.learn(RAW_TEXT * 3, RAW_TEXT[::-1] * 3, kind="raw", operations=60)


def test_words_come_back(words: Subwords) -> None:
    assert words.decode(words.encode(ENGLISH, "source")) == ENGLISH
    assert words.decode(words.encode(OTHER, "target")) == OTHER
    assert words.decode(words.encode(["  low\tslow "], "source")) == ["low slow"]
    assert words.encode([""], "source") == [[]] and words.decode([[]]) == [""]


def test_pieces_carry_the_joiner(words: Subwords) -> None:
    (ids,) = words.encode(["window slowest"], "source")
    pieces = words.pieces(ids)
    assert len(pieces) > 2
    assert " ".join(pieces).replace("@@ ", "") == "window slowest"


def test_words_that_look_like_joiners_or_specials_come_back() -> None:
    lines = ["a@@ b@@", "<unk> </s> <pad>", "@@ @@@ x"]
    subwords = Subwords.learn(lines, lines, operations=10)
    assert subwords.decode(subwords.encode(lines, "source")) == lines
    assert UNK not in subwords.encode(lines, "source")[1]


def test_unseen_characters_are_unknown(words: Subwords) -> None:
    (ids,) = words.encode(["low ☃ low☃low"], "source")
    assert ids.count(UNK) == 2
    assert words.decode([ids])[0].startswith("low <unk> low<unk> ")
    assert words.unk_rate(["☃", "low"], "source") == pytest.approx(1 / 2)
    assert words.unk_rate([], "source") == 0


def test_specials_are_left_out_of_text(words: Subwords) -> None:
    (ids,) = words.encode(["low slow"], "source")
    assert words.decode([[BOS, *ids, EOS, PAD, PAD]]) == ["low slow"]
    assert words.decode([np.array([*ids, EOS])]) == ["low slow"]
    assert words.pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]


def test_vocabulary_is_characters_and_the_merges_that_occur() -> None:
    lines = ["abab abab", "ab abc"]
    subwords = Subwords.learn(lines, ["abab ab", ""], operations=100)
    assert sorted(subwords.pieces(range(4, subwords.size))) == sorted(
        ["a@@", "b@@", "b", "c", "ab", "abab", "ab@@"]
    )
    assert sum(len(ids) for ids in subwords.encode(lines, "source")) == 5  # abab abab ab ab@@ c


def test_operations_is_the_number_of_merges() -> None:
    subwords = Subwords.learn(ENGLISH, OTHER, operations=17)
    assert len(subwords._content()["merges"]) == 17
    assert subwords.size <= 4 + len(subwords._content()["symbols"]) + 17


def test_a_side_uses_no_subword_of_the_other(words: Subwords) -> None:
    (here,), (there,) = words.encode(["window"], "source"), words.encode(["window"], "target")
    assert words.decode([there]) == ["window"]
    assert len(there) == len("window") > len(here)
    assert not words.target_mask[here].all()
    (kept,) = words.encode([","], "target")
    assert kept == words.encode([","], "source")[0]


def test_an_unseen_piece_is_split_no_further_than_needed() -> None:
    merges = Merges(["a@@", "b@@", "c@@", "d"], [(1, 2), (3, 4), (5, 6)])  # ab@@, cd, abcd
    subwords = Subwords("words", merges, seen_source=[7], seen_target=[5])
    (source,), (target,) = subwords.encode(["abcd"], "source"), subwords.encode(["abcd"], "target")
    assert subwords.pieces(source) == ["abcd"]
    assert subwords.pieces(target) == ["ab@@", "c@@", "d"]
    assert subwords.size == 4 + 4 + 2  # cd stands nowhere in the text
    assert subwords.target_mask[4:].tolist() == [True] * 5 + [False]
    assert subwords.source_mask[4:].tolist() == [True] * 4 + [False, True]


def test_for_dropout_keeps_what_words_are_merged_through() -> None:
    lines = ["abcd abcd abc abc"]
    plain = Subwords.learn(lines, lines, operations=20)
    fuller = Subwords.learn(lines, lines, operations=20, for_dropout=SIDES)
    assert fuller.pieces(fuller.encode(lines, "source")[0]) == ["abcd", "abcd", "abc", "abc"]
    extra = set(fuller.pieces(range(fuller.size))) - set(plain.pieces(range(plain.size)))
    assert extra == {"ab@@", "cd"}
    assert fuller.source_mask.sum() == plain.source_mask.sum() + 2


@pytest.mark.parametrize("kind", ["words", "raw"])
def test_masks_hold_all_that_encoding_gives(kind: str) -> None:
    subwords = Subwords.learn(ENGLISH, OTHER, kind=kind, operations=40)  # type: ignore[arg-type]
    lines = [*ENGLISH, *OTHER, "окноwindow ☃ \u2028", "lowестnew"]
    for side, mask in (("source", subwords.source_mask), ("target", subwords.target_mask)):
        assert mask.shape == (subwords.size,) and mask.dtype == bool
        assert mask[[UNK, EOS]].all() and not mask[[PAD, BOS]].any()
        for ids in subwords.encode(lines, side):  # type: ignore[arg-type]
            assert mask[ids].all()
    assert (subwords.source_mask != subwords.target_mask).any()
    assert not (~subwords.source_mask & ~subwords.target_mask)[4:].any() or kind == "raw"


def test_raw_never_writes_a_line_break(raw: Subwords) -> None:
    (newline,) = raw.encode(["\n"], "target")
    assert raw.decode([newline]) == ["\n"]
    assert not raw.target_mask[newline].all()


@settings(deadline=None, max_examples=300)
@given(
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])),
    st.sampled_from(["source", "target"]),
)
def test_raw_text_is_lossless(raw: Subwords, line: str, side: str) -> None:
    (ids,) = raw.encode([line], side)  # type: ignore[arg-type]
    assert UNK not in ids
    assert raw.decode([ids]) == [line]
    assert raw.target_mask[ids].all() if side == "target" else raw.source_mask[ids].all()


@pytest.mark.parametrize(
    "line",
    ["", " ", "  two  spaces ", "\t tab\t", "a\u2028b\u0085c", "👩‍👩‍👧 ❤️", "e\u0301 é", "▁x▁", "<0x41> <unk>",
     "한국어 中文 ไทย", "\ufeff", "\r", "@@ @@"],
)  # fmt: skip
def test_raw_text_with_odd_characters_comes_back(raw: Subwords, line: str) -> None:
    assert raw.decode(raw.encode([line], "target")) == [line]


def test_raw_words_are_the_same_first_and_later(raw: Subwords) -> None:
    first, second = raw.encode(["Hello", "Hello Hello"], "source")
    assert second == first * 2
    assert raw.pieces(first) == ["▁Hello"]


def test_raw_spells_rare_characters_in_bytes() -> None:
    common = ["some ordinary text here " * 50] * 1000
    subwords = Subwords.learn([*common, "☃"], [*common, "x"], kind="raw", operations=20)
    assert subwords.pieces(subwords.encode(["☃"], "source")[0])[-3:] == ["<0xE2>", "<0x98>", "<0x83>"]


def test_broken_bytes_are_shown_not_raised(raw: Subwords) -> None:
    ids = raw.encode(["中"], "target")[0][:-1]
    assert raw.decode([ids]) == ["\ufffd"]


def test_learning_is_the_same_in_another_process(words: Subwords, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("".join(line + "\n" for line in ENGLISH))
    (tmp_path / "t").write_text("".join(line + "\n" for line in OTHER))
    code = (
        "import sys; from qknorm.data import Subwords;"
        "print(Subwords.learn(sys.argv[1], sys.argv[2], operations=60).fingerprint)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "s"), str(tmp_path / "t")]
    assert subprocess.check_output(command, text=True).strip() == words.fingerprint


def test_sides_of_unequal_size_are_sampled_by_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """n = 900 and 100, power 0.5: shares of 3/4 and 1/4, so 750 of one and the other 2.5 times."""
    from qknorm.data import merges, subwords

    seen: list[dict[str, int]] = []

    class Spy(merges.Merges):
        @classmethod
        def learn(cls, symbols, words, operations):  # type: ignore[no-untyped-def]
            seen.append({"".join(word).replace("@@", ""): count for word, count in words.items()})
            return super().learn(symbols, words, operations)

    monkeypatch.setattr(subwords, "Merges", Spy)
    large, small = [f"a{i}" for i in range(900)], [f"b{i}" for i in range(100)]
    for power, shares in ((0.5, (750, 250)), (1.0, (900, 100)), (0.0, (500, 500))):
        Subwords.learn(large, small, operations=5, sample_power=power)
        counts = seen[-1]
        assert sum(n for word, n in counts.items() if word[0] == "a") == shares[0]
        assert sum(n for word, n in counts.items() if word[0] == "b") == shares[1]
    assert {seen[0][f"b{i}"] for i in range(100)} == {2, 3}
    Subwords.learn(large, small, operations=5, seed=2)
    assert seen[-1] != seen[0]
    Subwords.learn(large, small, operations=5)
    assert seen[-1] == seen[0]
    Subwords.learn(small, small, operations=5)
    assert set(seen[-1].values()) == {2}


def test_learning_from_nothing_is_a_user_error() -> None:
    for nothing in ([], ["", " "]):
        with pytest.raises(UserError, match="cannot be learnt"):
            Subwords.learn(nothing, ["a"])


@pytest.mark.parametrize("kind", ["words", "raw"])
def test_loaded_is_saved(kind: str, tmp_path: Path) -> None:
    saved = Subwords.learn(ENGLISH, OTHER, kind=kind, operations=40)  # type: ignore[arg-type]
    saved.save(tmp_path / "subwords.json")
    loaded = Subwords.load(tmp_path / "subwords.json")
    lines = [*ENGLISH, *OTHER, "lowest окно ☃"]
    for side in ("source", "target"):
        assert loaded.encode(lines, side) == saved.encode(lines, side)  # type: ignore[arg-type]
    assert loaded.pieces(range(loaded.size)) == saved.pieces(range(saved.size))
    assert (loaded.target_mask == saved.target_mask).all() and (loaded.source_mask == saved.source_mask).all()
    assert loaded.fingerprint == saved.fingerprint and loaded.kind == kind
    saved.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "subwords.json").read_bytes()


def test_a_broken_or_altered_file_is_refused(words: Subwords, tmp_path: Path) -> None:
    path = tmp_path / "subwords.json"
    with pytest.raises(UserError, match="cannot be read"):
        Subwords.load(path)
    words.save(path)
    whole = path.read_bytes()
    for content in (whole[:-40], b"", b"\xff\xfe", b"[]", b"{}"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"subwords\.json"):
            Subwords.load(path)
    fields = json.loads(whole)
    for key, value in (
        ("merges", fields["merges"][:-1]),
        ("target", fields["target"][1:]),
        ("pieces", fields["pieces"][::-1]),
        ("kind", "raw"),
        ("sha256", "0" * 64),
    ):
        path.write_text(json.dumps(fields | {key: value}))
        with pytest.raises(UserError, match="were changed"):
            Subwords.load(path)
    path.write_text(json.dumps(fields | {"format": 2}))
    with pytest.raises(UserError, match="format 2"):
        Subwords.load(path)
    path.write_bytes(whole)
    assert Subwords.load(path).fingerprint == words.fingerprint


def test_a_full_cache_of_words_is_emptied(words: Subwords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qknorm.data.subwords._CACHED_WORDS", 3)
    before = words.encode(ENGLISH, "source")
    assert words.encode(ENGLISH, "source") == before
    assert words.decode(before) == ENGLISH
