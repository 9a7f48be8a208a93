"""What the tests of this room share: ways to serve the two small runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from qknorm.serving import Limits, Served, create_app, load_served

Serve = Callable[..., TestClient]


@pytest.fixture(scope="session")
def runs(runs) -> list[Path]:
    """The folders of the two runs."""
    return [run.path for run in runs]


@pytest.fixture(scope="session")
def models(runs) -> list[Served]:
    return load_served(runs, "cpu")


@pytest.fixture
def serve(models) -> Iterator[Serve]:
    """Start the application with these limits and options; returns a client of it."""
    with ExitStack() as stack:

        def start(limits: Limits | None = None, **options: Any) -> TestClient:
            return stack.enter_context(client_of(models, limits, **options))

        yield start


@pytest.fixture(scope="module")
def client(models) -> Iterator[TestClient]:
    """A client of one application for all tests of a file."""
    with client_of(models) as found:
        yield found


def client_of(models: list[Served], limits: Limits | None = None, **options: Any) -> TestClient:
    app = create_app(models, limits, **options)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
