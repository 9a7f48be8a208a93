"""A real browser for the tests of the page: the Chromium that is installed, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; the tests are skipped, with the reason, where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # its sandbox does not work for root
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@contextmanager
def running(app: Any) -> Iterator[str]:
    """The application on a free port of this machine; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)
