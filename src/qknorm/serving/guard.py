"""What every answer goes through: who may ask, headers that tell a browser to trust nothing, and counting."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qknorm.serving.metrics import Metrics

log = logging.getLogger("qknorm.serving")

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
METHODS = {"GET", "HEAD", "POST"}


def problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """An answer that says why there is none."""
    body = json.dumps({"error": sentence}, ensure_ascii=False)
    return Response(body, status, headers, "application/json")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class ApiKey:
    """The key a client must show, if any; only its hash is kept."""

    def __init__(self, key: str | None) -> None:
        self._digest = None if key is None else _digest(key)

    def admits(self, shown: str | None) -> bool:
        """Compared in a time that does not tell how much of the key was right."""
        return self._digest is None or hmac.compare_digest(self._digest, _digest(shown or ""))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class Guard:
    """Around the whole application.

    Args:
        app: what is guarded.
        metrics: where requests are counted.
        paths: those that are counted under their own names.
        local: whether to answer only requests addressed to this machine by a name of its own. Without
            that, a web page could reach a server on loopback by giving its own name that address.
        most: requests at a time.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, paths: Collection[str], local: bool, most: int
    ) -> None:
        self.app, self.metrics, self.paths, self.local, self.most = app, metrics, paths, local, most
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self.running += 1
        try:
            if self.running > self.most:
                sentence = "Too many requests are being answered; try again in 1 s."
                await problem(503, sentence, {"Retry-After": "1"})(scope, receive, answer)
            elif self.local and not _own_name(Headers(scope=scope).get("host", "")):
                refusal = problem(421, "This server answers only to localhost and addresses of this machine.")
                await refusal(scope, receive, answer)
            else:
                await self.app(scope, receive, answer)
        except Exception:
            log.exception("A request to %s failed.", scope["path"] if scope["path"] in self.paths else "?")
            if status:
                raise
            await problem(500, "Something went wrong here; the server's log says what.")(
                scope, receive, answer
            )
        finally:
            self.running -= 1
            self._count(scope, status, time.monotonic() - began)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self.paths else "other"
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.requests.add(1, method, path, str(status))
        if path == "/translate" and status == 200:
            self.metrics.seconds.observe(seconds)


def _own_name(host: str) -> bool:
    """Whether a Host header, with or without a port, names this machine as itself."""
    name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name)
