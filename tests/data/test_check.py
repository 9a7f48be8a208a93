"""What `check_corpus` finds."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from qknorm.data.check import CorpusReport, Files, check_corpus
from qknorm.errors import UserError


class Corpus:
    """Files of a small corpus, good until a test spoils them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for split, count in (("train", 40), ("dev", 5), ("test", 5)):
            self.write(f"{split}.xx", [f"{split} source {i} ." for i in range(count)])
            self.write(f"{split}.yy", [f"{split} target {i} ." for i in range(count)])

    def write(self, name: str, lines: list[str] | bytes) -> None:
        content = lines if isinstance(lines, bytes) else "".join(line + "\n" for line in lines).encode()
        (self.folder / name).write_bytes(content)

    def files(self, split: str) -> Files:
        return self.folder / f"{split}.xx", self.folder / f"{split}.yy"

    def check(self) -> CorpusReport:
        return check_corpus(self.files("train"), self.files("dev"), self.files("test"))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path)


def test_a_good_corpus_has_nothing_to_tell(corpus: Corpus) -> None:
    report = corpus.check()
    assert report.errors == report.warnings == []
    assert [(name, counts.pairs, counts.usable) for name, counts in report.counts.items()] == [
        ("train", 40, 40),
        ("dev", 5, 5),
        ("test", 5, 5),
    ]
    report.raise_if_broken()


def test_dev_and_test_need_not_be_given(corpus: Corpus) -> None:
    report = check_corpus(corpus.files("train"))
    assert report.errors == [] and list(report.counts) == ["train"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.xx", b"", "train.xx is empty"),
        ("dev.yy", b"one\ntwo\nthree\n", "dev.xx has 5 lines and .*dev.yy has 3;"),
        ("train.yy", b"one\n" * 45, "train.xx has 40 lines and .*train.yy has 45;"),
        ("dev.xx", b"a\nb\n\xc3\n\xff\ne\n", r"dev.xx line 3 is not valid UTF-8; .*\(1 more lines like it\)"),
        ("test.xx", b"a\nb\nc\nd\0\ne\n", "test.xx line 4 has a NUL byte"),
        ("dev.yy", b"".join(b"dev source %d .\n" % i for i in range(5)), "dev.xx and .*dev.yy have the same"),
        ("train.yy", gzip.compress(b"a line\n" * 4000, mtime=0)[:-9], "train.yy is a broken gzip file"),
    ],
)
def test_each_fatal_problem_is_found(corpus: Corpus, name: str, content: bytes, message: str) -> None:
    corpus.write(name, content)
    report = corpus.check()
    assert len(report.errors) == 1
    with pytest.raises(UserError, match=message):
        report.raise_if_broken()


def test_missing_files_are_all_named(corpus: Corpus) -> None:
    (corpus.folder / "train.xx").unlink()
    (corpus.folder / "test.yy").unlink()
    errors = corpus.check().errors
    assert len(errors) == 2 and "test.yy" in errors[0] and "train.xx" in errors[1]


def test_all_problems_are_told_at_once(corpus: Corpus) -> None:
    corpus.write("train.xx", b"a\xff\n" * 3)
    corpus.write("dev.xx", b"")
    (corpus.folder / "test.yy").unlink()
    with pytest.raises(UserError) as caught:
        corpus.check().raise_if_broken()
    message = str(caught.value)
    for part in ("train.xx line 1 is not valid", "train.xx has 3 lines", "dev.xx is empty", "test.yy"):
        assert part in message
    assert len(message.split("\n")) == 4


def test_files_of_ids_are_fatal_only_on_both_sides(corpus: Corpus) -> None:
    ids = [f"{i} {i * 7} 12 3" for i in range(40)]
    corpus.write("train.xx", ids)
    assert corpus.check().errors == []
    corpus.write("train.yy", [line + " 9" for line in ids[:39]] + ["text"])
    (error,) = corpus.check().errors
    assert "ids instead of text" in error


def test_a_corpus_of_blank_pairs_is_fatal(corpus: Corpus) -> None:
    corpus.write("dev.xx", ["", "a", "", "", ""])
    corpus.write("dev.yy", ["b", "", "c", "d", "e"])
    (error,) = corpus.check().errors
    assert "no pair with text on both sides" in error


def test_blank_lines_are_counted(corpus: Corpus) -> None:
    lines = [f"train target {i} ." for i in range(40)]
    lines[6], lines[9] = "", " \u3000\t"
    corpus.write("train.yy", lines)
    corpus.write("dev.xx", ["a", "b", "c", "d", ""])
    report = corpus.check()
    assert report.counts["train"].blank == 2 and report.counts["train"].usable == 38
    dev, train = report.warnings
    assert train.startswith("2 of 40 train pairs have an empty side and are dropped") and "line 7" in train
    assert dev.startswith("1 of 5 dev pairs have an empty side and are kept") and "line 5" in dev


def test_identical_sides_and_duplicates_are_counted(corpus: Corpus) -> None:
    source = [f"s {i}" for i in range(40)]
    target = [f"t {i}" for i in range(40)]
    target[3] = source[3]
    source[20], target[20] = source[10], target[10]
    source[30], target[30] = source[10], target[10]
    source[31] = source[11]  # with another translation: no duplicate pair
    corpus.write("train.xx", source)
    corpus.write("train.yy", target)
    report = corpus.check()
    identical, duplicates = report.warnings
    assert "1 of 40 train pairs have the same text on both sides" in identical and "line 4" in identical
    assert "2 of 40 train pairs stand in the file more than once" in duplicates and "line 21" in duplicates


def test_held_out_sentences_in_train_are_counted(corpus: Corpus) -> None:
    corpus.write("dev.xx", ["train source 8 .", "x", "train source 8 .", "train source 9 .", "y"])
    corpus.write("dev.yy", ["train target 8 .", "x y", "other", "other", "z"])
    report = corpus.check()
    assert report.counts["dev"].sources_in_train == 3
    assert report.counts["dev"].pairs_in_train == 1
    assert report.counts["test"].sources_in_train == 0
    (warning,) = report.warnings
    assert "3 of 5 dev source sentences" in warning and "1 of them with the same" in warning
    assert "dev.xx line 1" in warning and "train.xx line 9" in warning


def test_many_long_lines_are_warned_of(corpus: Corpus) -> None:
    lines = [f"train target {i} ." for i in range(40)]
    lines[4] = "word " * 251
    corpus.write("train.yy", lines)
    (warning,) = corpus.check().warnings
    assert "1 of 40 train pairs are very long" in warning and "line 5" in warning


def test_memory_does_not_hold_train(corpus: Corpus) -> None:
    corpus.write("train.xx", [f"{i} " + "source " * 60 for i in range(20_000)])
    corpus.write("train.yy", [f"{i} " + "target " * 60 for i in range(20_000)])
    tracemalloc.start()
    assert corpus.check().errors == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e6  # the text is 17 MB
