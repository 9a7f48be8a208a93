"""Reading and writing text files."""

import gzip
import os
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.data import text
from qknorm.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lines.txt"


def test_only_newlines_break_lines(file: Path) -> None:
    file.write_bytes("a\u2028b\u0085c\x0bd\x0ce\rf\ng\r\nh\r\r\n\ni".encode())
    assert list(text.lines(file)) == ["a\u2028b\u0085c\x0bd\x0ce\rf", "g", "h\r", "", "i"]
    assert text.count_lines(file) == 5


def test_characters_are_counted_not_bytes(file: Path) -> None:
    file.write_bytes("\ufeffaño\n中文".encode())
    assert text.count_characters(file) == 6


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]))))
def test_written_lines_are_read_back(tmp_path_factory: pytest.TempPathFactory, written: list[str]) -> None:
    file = tmp_path_factory.mktemp("lines") / "file"
    file.write_bytes("".join(line + "\n" for line in written).encode())
    expected = [written[0].removeprefix("\ufeff"), *written[1:]] if written else []
    assert list(text.lines(file)) == expected


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"a", "☃".encode(), b"\xff", b"\0"])),
    st.integers(1, 9),
)
def test_blocks_of_any_size_have_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], size: int
) -> None:
    file = tmp_path_factory.mktemp("blocks") / "file"
    file.write_bytes(b"".join(pieces))
    with file.open("rb") as whole:
        expected = [line.removesuffix(b"\n").removesuffix(b"\r") for line in whole]
    if expected:
        start = b"".join(pieces).removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)
        expected[0] = start[0].removesuffix(b"\r")
    wrong = [number for number, line in enumerate(expected, 1) if text.fault(line)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_BLOCK", size)
        assert list(text.raw_lines(file)) == expected
        assert text.count_lines(file) == len(expected)
        if wrong:
            with pytest.raises(UserError, match=f"line {wrong[0]} "):
                list(text.lines(file))
        sound = expected[: wrong[0] - 1] if wrong else expected
        read = islice(text.lines(file), len(sound))
        assert [line.encode() for line in read] == sound


def test_a_broken_gzip_file_gives_the_lines_before_the_break(file: Path) -> None:
    whole = gzip.compress(b"".join(b"%d\n" % number for number in range(100_000)))
    file.write_bytes(whole[: len(whole) // 2])
    read: list[str] = []
    with pytest.raises(UserError, match="past line") as caught:
        for line in text.lines(file):
            read.append(line)
    assert len(read) > 10_000 and read == [str(number) for number in range(len(read))]
    assert f"past line {len(read)};" in str(caught.value)


def test_gzip_is_told_by_its_bytes_not_its_name(tmp_path: Path) -> None:
    packed, plain = tmp_path / "packed.txt", tmp_path / "plain.gz"
    packed.write_bytes(gzip.compress(b"one\ntwo\n"))
    plain.write_bytes(b"one\ntwo\n")
    assert list(text.lines(packed)) == list(text.lines(plain)) == ["one", "two"]


def test_a_byte_order_mark_is_not_text(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    assert list(text.lines(file)) == ["one", "\ufefftwo"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a\nb\xff\n", "line 2 is not valid UTF-8"), (b"a\nb\n\0\n", "line 3 has a NUL")],
)
def test_what_is_not_text_is_named_by_line(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        list(text.lines(file))
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-20], lambda b: b[:40] + b"\0" * 40 + b[80:], lambda b: b[:5]]
)
def test_broken_gzip_is_a_user_error(file: Path, damage: object) -> None:
    whole = gzip.compress(os.urandom(3000).hex().encode() + b"\n" + os.urandom(30000).hex().encode())
    file.write_bytes(damage(whole))  # type: ignore[operator]
    with pytest.raises(UserError, match="broken gzip file"):
        list(text.lines(file))


def test_missing_file_and_folder_are_user_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(UserError, match=str(path)):
            list(text.lines(path))
        with pytest.raises(UserError, match=str(path)):
            text.sha256_file(path)


def test_pairs_leaves_out_blank_ones_and_keeps_line_numbers(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("a\n\nc\nd\n \u3000\n")
    target.write_text("A\nB\n\t\nD\nE\n")
    assert list(text.pairs(source, target)) == [(1, "a", "A"), (4, "d", "D")]
    assert [number for number, *_ in text.pairs(source, target, keep_blank=True)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("here", "there"), [(3, 7), (7, 3), (0, 2), (4, 3)])
def test_pairs_of_different_length_say_both_counts(tmp_path: Path, here: int, there: int) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("x\n" * here)
    target.write_text("y\n" * there)
    with pytest.raises(UserError, match=f"has {here} lines and .* has {there};"):
        list(text.pairs(source, target))


def test_sha256_is_of_the_file_as_it_lies(file: Path) -> None:
    file.write_bytes(b"abc")
    assert text.sha256_file(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("content", ["é\n", b"\0\xff"])
def test_write_atomic_writes_text_and_bytes(file: Path, content: str | bytes) -> None:
    file.write_text("old")
    text.write_atomic(file, content)
    assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(file.parent) == [file.name]


def test_a_failed_write_leaves_the_old_file_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        text.write_atomic(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(file.parent) == [file.name]


def test_written_files_are_as_readable_as_others(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    text.write_atomic(tmp_path / "atomic", "x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode
