"""What training on a GPU needs besides its data, begun while those are prepared."""

from __future__ import annotations

import importlib
from contextlib import suppress
from threading import Thread

import torch

SLOW = ("qknorm.training.captured", "torch.utils.tensorboard")
"""Modules that take seconds to import; what needs one later waits for it."""


def warm_up(device: torch.device) -> Thread | None:
    """Start a GPU and import what it is trained with, in a thread; nothing to do for a CPU."""
    if device.type != "cuda":
        return None
    thread = Thread(target=_warm, args=(device,), name="qknorm-warm-up")
    thread.start()
    return thread


def _warm(device: torch.device) -> None:
    with suppress(Exception):  # whoever needs it then meets the same error, and tells it
        torch.zeros(1, device=device)
        for name in SLOW:
            importlib.import_module(name)
