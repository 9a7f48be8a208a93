"""Fetch one file over HTTP: taken up where it broke off, tried again, never half in place."""

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that have come, and how many there are if the server says."""

_CHUNK = 1 << 16
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_NETWORK_FAULTS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


class DownloadError(Exception):
    """The file could not be had; the message says why, without naming the address."""


def download(
    url: str,
    path: Path,
    progress: Progress | None = None,
    *,
    attempts: int = 4,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Fetch `url` into `path`. What has come so far is kept beside it as `.part` and continued next time.

    Gives up after `attempts` tries in a row that brought nothing new, each `pause` doubled after the last.
    """
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    failures = 0
    while True:
        before = _size(part)
        try:
            if _fetch(url, part, path.name, progress, timeout):
                break
            reason = "the connection broke off"
        except urllib.error.HTTPError as error:
            reason = f"the server answers {error.code} {error.reason}"
            error.close()
            if error.code < 500 and error.code not in (408, 416, 429):
                raise DownloadError(reason) from None
            if error.code == 416:  # the part is longer than the file: it is of another one
                _forget(part)
        except _NETWORK_FAULTS as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 1 if _size(part) > before else failures + 1
        if failures >= attempts:
            raise DownloadError(reason)
        time.sleep(pause * 2 ** (failures - 1))
    os.replace(part, path)
    _tag(part).unlink(missing_ok=True)


def _fetch(url: str, part: Path, name: str, progress: Progress | None, timeout: float) -> bool:
    """Add to the part what the server still has; True once it is whole."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "qknorm"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if _tag(part).exists():  # a file changed since then is sent whole
            request.add_header("If-Range", _tag(part).read_text(encoding="utf-8"))
    with urllib.request.urlopen(request, timeout=timeout) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length is not None else None
        if response.status == 206:
            start, total = _range(response.headers.get("Content-Range", ""))
            if start != have:
                _forget(part)
                return False
        else:
            have = 0
            _remember(part, response.headers)
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(name, have, total)
            file.flush()
            os.fsync(file.fileno())
    return total is None or have == total


def _range(header: str) -> tuple[int | None, int | None]:
    """Where a partial answer starts, and how long the whole is."""
    match = _RANGE.fullmatch(header)
    if match is None:
        return None, None
    return int(match[1]), None if match[2] == "*" else int(match[2])


def _remember(part: Path, headers: http.client.HTTPMessage) -> None:
    """Note which version of the file the part is of, if the server tells."""
    etag = headers.get("ETag", "")
    version = etag if etag.startswith('"') else headers.get("Last-Modified")
    if version:
        _tag(part).write_text(version, encoding="utf-8")
    else:
        _tag(part).unlink(missing_ok=True)


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag(part).unlink(missing_ok=True)


def _tag(part: Path) -> Path:
    return part.with_name(part.name + ".version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
