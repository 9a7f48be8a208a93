"""A small HTTP server on this machine for download tests, with faults on request."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch


class Loopback(ThreadingHTTPServer):
    """Serves `files` by name. Set a fault to see how a client takes it; `requests` notes what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.version = '"1"'
        self.ignore_range = False
        self.send_length = True
        self.cuts: list[int] = []
        """Bytes after which each of the next answers breaks off."""
        self.failures: list[int] = []
        """Status codes of the next answers."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data/"


class _Handler(BaseHTTPRequestHandler):
    server: Loopback
    timeout = 10

    def do_GET(self) -> None:
        server = self.server
        name = self.path.removeprefix("/data/")
        asked = self.headers.get("Range")
        server.requests.append((name, asked))
        if server.failures:
            self.send_error(server.failures.pop(0))
            return
        if name not in server.files:
            self.send_error(404)
            return
        body = server.files[name]
        start = 0
        if (
            asked
            and not server.ignore_range
            and self.headers.get("If-Range", server.version) == server.version
        ):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("ETag", server.version)
        if server.send_length:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        rest = body[start:]
        self.wfile.write(rest[: server.cuts.pop(0)] if server.cuts else rest)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output quiet."""


@contextmanager
def serving() -> Iterator[Loopback]:
    """A server that is gone when the block ends."""
    with Loopback() as server, patch.dict(os.environ, no_proxy="*"):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(timeout=10)
