"""What the tests of this room share: ways to serve the two small runs.

The server's packages are imported where they are used: without them the test files say why they are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from qknorm.serving import Limits, Served


@pytest.fixture(scope="session")
def runs(runs) -> list[Path]:
    """The folders of the two runs."""
    return [run.path for run in runs]


@pytest.fixture(scope="session")
def models(runs) -> list[Served]:
    from qknorm.serving import load_served

    return load_served(runs, "cpu")


@pytest.fixture
def serve(models) -> Iterator[Callable[..., TestClient]]:
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
    from starlette.testclient import TestClient

    from qknorm.serving import create_app

    app = create_app(models, limits, **options)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
