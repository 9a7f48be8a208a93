"""What the tests of this room share: two small runs, trained in seconds, and ways to serve them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from qknorm.progress import Progress
from qknorm.serving import Limits, Served, create_app, load_served
from qknorm.training import train
from support.tiny import tiny_recipe, write_corpus

Serve = Callable[..., TestClient]


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> list[Path]:
    """A QKNorm run of two layers and a baseline of one, on the same text; tests must not change them."""
    folder = tmp_path_factory.mktemp("serving")
    corpus = write_corpus(folder / "corpus", train=120, dev=12, test=12)
    longer = ["training.max_epochs=2", "training.epoch_batches=20", "subwords.operations=12"]
    for name, overrides in (
        ("qknorm", ["model.encoder_layers=2", "model.decoder_layers=2"]),
        ("baseline", ["model.qk_norm=null", "model.norm=scale"]),
    ):
        recipe = tiny_recipe(corpus, *longer, *overrides)
        train(recipe, folder / name, device="cpu", progress=Progress(quiet=True), cache=folder)
    return [folder / "qknorm", folder / "baseline"]


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
