"""Encoded corpora and their cache."""

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from qknorm.data import encoded
from qknorm.data.encoded import EncodedCorpus
from qknorm.data.sentences import EncodedPairs, Sentences
from qknorm.data.subwords import Subwords
from qknorm.errors import UserError

SOURCE = ["a low window", "", "the lowest  window ☃", "low", "the window low a"]
TARGET = ["ein fenster", "x", "das fenster .", " ", "fenster"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name, lines in (("s", SOURCE), ("t", TARGET)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        age(tmp_path / name)
    return tmp_path / "s", tmp_path / "t"


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return Subwords.learn([line.replace("☃", "") for line in SOURCE], TARGET, operations=20)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders encoded into, one for each time a corpus was really encoded."""
    calls: list[Path] = []
    write = encoded._write

    def counted(folder: Path, *rest: object) -> None:
        calls.append(folder)
        write(folder, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(encoded, "_write", counted)
    return calls


def age(path: Path) -> None:
    """Wait out the time in which a file's clock might not show a second change, without waiting."""
    past = time.time() - 100
    os.utime(path, (past, past))


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files written a moment ago count as settled, save in the test about that."""
    monkeypatch.setattr(encoded, "_SETTLED_NS", -1)


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def test_it_is_what_the_subwords_say(files: tuple[Path, Path], subwords: Subwords, cache: Path) -> None:
    corpus = EncodedCorpus.open(*files, subwords, cache)
    kept = [0, 2, 4]
    assert len(corpus) == 3
    for place, line in enumerate(kept):
        source, target = corpus[place]
        assert source.tolist() == subwords.encode([SOURCE[line]], "source")[0]
        assert target.tolist() == subwords.encode([TARGET[line]], "target")[0]
    assert source.dtype == np.uint16
    assert corpus.lengths("source").tolist() == [len(corpus[i][0]) for i in range(3)]
    assert corpus.lengths("target").tolist() == [len(corpus[i][1]) for i in range(3)]
    with pytest.raises(IndexError):
        corpus[3]


def test_facts(files: tuple[Path, Path], subwords: Subwords, cache: Path) -> None:
    corpus = EncodedCorpus.open(*files, subwords, cache)
    facts = corpus.facts
    assert (facts.examples, facts.blank, facts.source_words, facts.target_words) == (3, 2, 11, 6)
    assert facts.source_subwords == corpus.lengths("source").sum()
    assert facts.target_subwords == corpus.lengths("target").sum()
    assert (facts.source_unknown, facts.target_unknown) == (1, 0)


def test_blank_pairs_are_kept_on_request(files: tuple[Path, Path], subwords: Subwords, cache: Path) -> None:
    corpus = EncodedCorpus.open(*files, subwords, cache, keep_blank=True)
    assert len(corpus) == 5 and corpus.facts.blank == 0
    assert corpus.lengths("source")[1] == 0 and corpus.lengths("target")[3] == 0
    assert len(EncodedCorpus.open(*files, subwords, cache)) == 3


def test_an_empty_side_can_be_kept(tmp_path: Path, subwords: Subwords, cache: Path) -> None:
    (tmp_path / "s").write_text("\n\n")
    (tmp_path / "t").write_text("low\n\n")
    corpus = EncodedCorpus.open(tmp_path / "s", tmp_path / "t", subwords, cache, keep_blank=True)
    assert corpus.lengths("source").tolist() == [0, 0] and corpus.lengths("target")[0] > 0
    with pytest.raises(UserError, match="no pair with text"):
        EncodedCorpus.open(tmp_path / "s", tmp_path / "t", subwords, cache)


def test_chunks_join_without_a_seam(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EncodedCorpus.open(*files, subwords, cache)
    monkeypatch.setattr(encoded, "_CHUNK", 1)
    pieced = EncodedCorpus.open(*files, subwords, cache.parent / "other")
    assert pieced.facts == whole.facts
    assert [pieced[i][0].tolist() for i in range(3)] == [whole[i][0].tolist() for i in range(3)]
    assert [pieced[i][1].tolist() for i in range(3)] == [whole[i][1].tolist() for i in range(3)]


def test_large_vocabularies_take_wider_numbers(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Subwords, "size", 70_000)
    assert EncodedCorpus.open(*files, subwords, cache)[0][0].dtype == np.int32


def test_the_second_start_reads_nothing_again(
    files: tuple[Path, Path],
    subwords: Subwords,
    cache: Path,
    writes: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = EncodedCorpus.open(*files, subwords, cache)
    monkeypatch.setattr("qknorm.data.text.sha256_file", lambda path: pytest.fail(f"{path} was hashed again"))
    second = EncodedCorpus.open(*files, subwords, cache)
    assert len(writes) == 1
    assert second.facts == first.facts and second[0][0].tolist() == first[0][0].tolist()


def test_a_changed_file_is_never_taken_for_the_old_one(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, writes: list[Path]
) -> None:
    """Same size, same modification time: the change time still tells."""
    old = EncodedCorpus.open(*files, subwords, cache)
    stat = files[0].stat()
    content = files[0].read_text()
    files[0].write_text(content.replace("a low", "low a"))
    os.utime(files[0], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new = EncodedCorpus.open(*files, subwords, cache)
    assert len(writes) == 2 and new[0][0].tolist() != old[0][0].tolist()
    files[0].write_text(content)
    assert EncodedCorpus.open(*files, subwords, cache)[0][0].tolist() == old[0][0].tolist()
    assert len(writes) == 2


def test_a_file_changed_a_moment_ago_is_not_stamped(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    EncodedCorpus.open(*files, subwords, cache)
    assert not list(cache.glob("*.stamp.json"))  # the change time of both files is now


def test_other_subwords_are_another_corpus(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, writes: list[Path]
) -> None:
    EncodedCorpus.open(*files, subwords, cache)
    EncodedCorpus.open(*files, Subwords.learn(SOURCE, TARGET, operations=2), cache)
    assert len(writes) == 2 and len(folders(cache)) == 2


DAMAGES = ["cut ids", "cut offsets", "no facts", "bad facts", "other facts", "no ids", "not npy"]
FLIPS = ["source.ids", "source.offsets", "target.ids", "target.offsets", "header"]


@pytest.mark.parametrize("damage", [*DAMAGES, *FLIPS])
def test_a_damaged_cache_is_made_again(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, writes: list[Path], damage: str
) -> None:
    good = [ids.tolist() for ids in EncodedCorpus.open(*files, subwords, cache)[2]]
    (folder,) = folders(cache)
    facts, ids, offsets = folder / "facts.json", folder / "source.ids.npy", folder / "target.offsets.npy"
    if damage == "cut ids":
        ids.write_bytes(ids.read_bytes()[:-2])
    elif damage == "cut offsets":
        np.save(offsets, np.load(offsets)[:-1])
    elif damage == "no facts":
        facts.unlink()
    elif damage == "bad facts":
        facts.write_text('{"examples": 3}')
    elif damage == "other facts":
        facts.write_text(facts.read_text().replace('"source_words": 11', '"source_words": 12'))
    elif damage == "no ids":
        ids.unlink()
    elif damage == "not npy":
        ids.write_bytes(b"not an array")
    elif damage == "header":
        ids.write_bytes(ids.read_bytes().replace(b"<u2", b"<i2"))
    else:
        flip_last_byte(folder / f"{damage}.npy")
    again = EncodedCorpus.open(*files, subwords, cache)
    assert [ids.tolist() for ids in again[2]] == good and len(writes) == 2
    assert folders(cache) == [folder]


def test_a_failure_leaves_nothing_behind(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files[1].write_text("only\n")
    with pytest.raises(UserError, match=r"has 5 lines and .* has 1;"):
        EncodedCorpus.open(*files, subwords, cache)
    assert folders(cache) == []


def test_a_file_changing_under_the_reader_is_refused(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = encoded._write

    def meddle(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        with files[0].open("a") as file:
            file.write("x")

    monkeypatch.setattr(encoded, "_write", meddle)
    with pytest.raises(UserError, match="changed while"):
        EncodedCorpus.open(*files, subwords, cache)
    assert folders(cache) == []


def _open_slowly(files: tuple[Path, Path], subwords_file: Path, cache: Path, barrier: object) -> None:
    write = encoded._write

    def together(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        barrier.wait(30)  # type: ignore[attr-defined]

    encoded._write = together  # type: ignore[assignment]
    assert len(EncodedCorpus.open(*files, Subwords.load(subwords_file), cache)) == 3


def test_two_writers_at_once_leave_one_whole_corpus(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, tmp_path: Path
) -> None:
    subwords.save(tmp_path / "subwords.json")
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    writers = [
        context.Process(target=_open_slowly, args=(files, tmp_path / "subwords.json", cache, barrier))
        for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(folders(cache)) == 1
    assert len(EncodedCorpus.open(*files, subwords, cache)) == 3


def _open_and_die(files: tuple[Path, Path], subwords_file: Path, cache: Path) -> None:
    encoded._publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    EncodedCorpus.open(*files, Subwords.load(subwords_file), cache)


def test_a_killed_writer_does_no_harm_and_is_cleared_away(
    files: tuple[Path, Path], subwords: Subwords, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subwords.save(tmp_path / "subwords.json")
    writer = multiprocessing.get_context("spawn").Process(
        target=_open_and_die, args=(files, tmp_path / "subwords.json", cache)
    )
    writer.start()
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    (left,) = folders(cache)
    assert left.name.endswith(".tmp")
    age(left)
    assert len(EncodedCorpus.open(*files, subwords, cache)) == 3
    assert left.exists()  # it may still be at work
    shutil.rmtree(folders(cache)[0] if folders(cache)[0] != left else folders(cache)[1])
    monkeypatch.setattr(encoded, "_ABANDONED_S", 50)
    assert len(EncodedCorpus.open(*files, subwords, cache)) == 3
    assert not left.exists()


def test_length_percentile_is_over_both_sides() -> None:
    source = Sentences.of([[5] * n for n in range(1, 51)])
    target = Sentences.of([[5] * n for n in range(51, 101)])
    pairs = EncodedPairs(source, target)
    assert pairs.length_percentile(97.5) == np.percentile(np.arange(1, 101), 97.5)
    assert pairs.length_percentile(0) == 1 and pairs.length_percentile(100) == 100


def test_sides_of_different_number_are_refused() -> None:
    with pytest.raises(ValueError, match="1 source and 2 target"):
        EncodedPairs(Sentences.of([[5]]), Sentences.of([[5], [6]]))


def test_take_gives_sentences_in_the_order_asked() -> None:
    sentences = Sentences.of([[5, 6], [], [7], [8, 9, 10]])
    ids, lengths = sentences.take(np.array([3, 1, 0, 3]))
    assert ids.tolist() == [8, 9, 10, 5, 6, 8, 9, 10] and lengths.tolist() == [3, 0, 2, 3]
