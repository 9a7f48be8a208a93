"""Lines from a stream, as they come."""

import os
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.data import line_groups, lines
from qknorm.errors import UserError


class Pipe:
    """Both ends of a pipe."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()

    def write(self, content: bytes) -> None:
        os.write(self.into, content)

    def close(self) -> None:
        os.close(self.into)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.out)


def test_a_line_comes_before_the_next_is_written(pipe: Pipe) -> None:
    groups = line_groups(pipe.out, 1024)
    for line in ("one", "", "two words"):
        pipe.write(line.encode() + b"\n")
        assert next(groups) == [line]
    pipe.write(b"three\nfo")
    assert next(groups) == ["three"]
    pipe.write(b"ur\nfive")
    assert next(groups) == ["four"]
    pipe.close()
    assert list(groups) == [["five"]]


def test_lines_that_are_there_come_together(pipe: Pipe) -> None:
    pipe.write(b"a\nb\nc\nd\ne\n")
    pipe.close()
    assert list(line_groups(pipe.out, 2)) == [["a", "b"], ["c", "d"], ["e"]]


def test_a_large_pipe_is_cut_into_whole_groups(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes within the time that lines wait comes together."""
    monkeypatch.setattr("qknorm.data.stream._PATIENCE_S", 60)
    text = [f"line {number} " + "x" * (number % 300) for number in range(5000)]

    def feed() -> None:
        with os.fdopen(pipe.into, "wb") as file:
            file.write("\n".join(text).encode())

    feeder = threading.Thread(target=feed)
    feeder.start()
    groups = list(line_groups(pipe.out, 1000))
    feeder.join()
    assert list(chain.from_iterable(groups)) == text
    assert [len(group) for group in groups] == [1000] * 5


@settings(deadline=None)
@given(st.lists(st.sampled_from(["", "a", "é\u2028", " \t", "b\r", "\ufeff"]), max_size=12), st.booleans())
def test_a_redirected_file_gives_what_lines_gives(tmp_path_factory, pieces: list[str], ended: bool) -> None:
    path: Path = tmp_path_factory.mktemp("stream") / "text"
    path.write_bytes("\n".join(pieces).encode() + (b"\n" if ended else b""))
    with open(path, "rb") as file:
        assert list(chain.from_iterable(line_groups(file.fileno(), 3))) == list(lines(path))


def test_what_is_not_text_is_named_with_its_line(pipe: Pipe) -> None:
    groups = line_groups(pipe.out, 2)
    pipe.write(b"\xef\xbb\xbfone\r\ntwo\nthree\nfour\x85\n")
    assert next(groups) == ["one", "two"]
    with pytest.raises(UserError, match="Standard input line 4 is not valid UTF-8"):
        next(groups)
