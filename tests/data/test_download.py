"""One file over HTTP: whole, resumed, retried, or refused with a reason."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.data.download import DownloadError, download
from support.loopback import Loopback, serving

BODY = bytes(range(256)) * 1000


@pytest.fixture
def server() -> Iterator[Loopback]:
    with serving() as running:
        running.files["file"] = BODY
        yield running


def fetch(server: Loopback, path: Path) -> list[tuple[str, int, int | None]]:
    told: list[tuple[str, int, int | None]] = []
    download(server.url + "file", path, lambda *told_now: told.append(told_now), pause=0, timeout=10)
    return told


def test_a_file_comes_whole_with_progress(server: Loopback, tmp_path: Path) -> None:
    told = fetch(server, tmp_path / "new" / "file")
    assert (tmp_path / "new" / "file").read_bytes() == BODY
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
    assert told[-1] == ("file", len(BODY), len(BODY))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_a_broken_connection_is_continued(server: Loopback, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.requests == [("file", None), ("file", "bytes=100000-"), ("file", "bytes=150000-")]


def test_an_interrupted_download_is_continued_by_the_next(server: Loopback, tmp_path: Path) -> None:
    server.cuts = [100_000]
    server.failures = []
    with pytest.raises(DownloadError, match="broke off"):
        download(server.url + "file", tmp_path / "file", pause=0, attempts=1)
    assert (tmp_path / "file.part").read_bytes() == BODY[:100_000]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.requests[-1] == ("file", "bytes=100000-")


def test_a_file_changed_since_is_fetched_from_the_start(server: Loopback, tmp_path: Path) -> None:
    server.cuts = [100_000]
    with pytest.raises(DownloadError):
        download(server.url + "file", tmp_path / "file", pause=0, attempts=1)
    server.files["file"], server.version = BODY[::-1], '"2"'
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY[::-1]


def test_a_server_without_ranges_is_asked_again_from_the_start(server: Loopback, tmp_path: Path) -> None:
    server.ignore_range = True
    server.cuts = [100_000]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_part_longer_than_the_file_is_discarded(server: Loopback, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY + b"more")
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_file_of_unsaid_length_comes_whole(server: Loopback, tmp_path: Path) -> None:
    server.send_length = False
    assert fetch(server, tmp_path / "file")[-1] == ("file", len(BODY), None)
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_busy_server_is_tried_again(server: Loopback, tmp_path: Path) -> None:
    server.failures = [503, 429]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_server_that_stays_down_is_given_up(server: Loopback, tmp_path: Path) -> None:
    server.failures = [500] * 10
    with pytest.raises(DownloadError, match="500"):
        fetch(server, tmp_path / "file")
    assert len(server.requests) == 4


def test_a_missing_file_is_not_asked_for_twice(server: Loopback, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="404"):
        download(server.url + "other", tmp_path / "other", pause=0)
    assert len(server.requests) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_host_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        with pytest.raises(DownloadError, match="refused"):
            download(f"http://127.0.0.1:{taken.getsockname()[1]}/file", tmp_path / "file", pause=0)


def test_a_full_disk_is_not_taken_for_the_network(
    server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qknorm.data.download.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(server, tmp_path / "file")
    assert len(server.requests) == 1


@settings(max_examples=25, deadline=None)
@given(
    body=st.binary(min_size=1, max_size=4000),
    cuts=st.lists(st.integers(1, 1500), max_size=6),
    ranges=st.booleans(),
)
def test_however_it_breaks_the_bytes_are_right(body: bytes, cuts: list[int], ranges: bool) -> None:
    with serving() as server, tempfile.TemporaryDirectory() as folder:
        server.files["file"] = body
        server.ignore_range = not ranges
        server.cuts = cuts[:3] if server.ignore_range else list(cuts)
        fetch(server, Path(folder) / "file")
        assert (Path(folder) / "file").read_bytes() == body
