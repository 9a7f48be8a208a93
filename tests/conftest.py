"""One thread (the tensors are tiny), reproducible property tests, and skips with a reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """A QKNorm run and a baseline on the same text, trained in seconds; tests must not change them."""
    from support.tiny import train_both  # here: tests of the layers need torch alone

    return train_both(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def corpora() -> Path:
    """The folder of real corpora that ``QKNORM_DATA`` names, for tests marked ``data``."""
    folder = os.environ.get("QKNORM_DATA")
    if not folder:
        pytest.skip("needs real corpora: set QKNORM_DATA to a folder that has them")
    return Path(folder)
