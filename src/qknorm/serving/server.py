"""The server: a socket, and uvicorn on it until it is told to end."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from qknorm.errors import UserError
from qknorm.serving.app import create_app
from qknorm.serving.guard import is_loopback
from qknorm.serving.limits import Limits
from qknorm.serving.served import load_served

PATIENCE = 60
"""Seconds that running requests have to finish after SIGTERM."""


def serve(
    runs: Sequence[str | Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    device: str | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve these runs until SIGTERM or Ctrl-C; what is running then is finished first."""
    with bind(host, port) as bound:
        models = load_served(runs, device)
        app = create_app(models, limits, api_key, local=is_loopback(host))
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                http="h11",
                ws="none",
                access_log=False,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=PATIENCE,
            )
        )
        address, number = bound.getsockname()[:2]
        shown = f"[{address}]" if bound.family == socket.AF_INET6 else address
        names = ", ".join(each.name for each in models)
        bound.listen()  # from here on clients wait to be answered, so that what is said next is true
        _say(f"Serving {names} at http://{shown}:{number}/ (API: /docs). Ctrl-C ends it.")
        if not is_loopback(host) and api_key is None:
            _say("Anyone who can reach this machine can use it: no --api-key was given.")
        before = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again when all is done
        try:
            server.run(sockets=[bound])
        finally:
            signal.signal(signal.SIGTERM, before)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to this address; not yet listening, so clients are refused until the models are read."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UserError(f'"{host}" is not an address of this machine: {error.strerror}.') from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise UserError(
            f"Cannot serve at {host} port {port}: {error.strerror}; choose another with --host or --port."
        ) from error
    return bound


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
