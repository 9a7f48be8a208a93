"""Checkpoints written while training goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from qknorm.tensors import save_tensors


class Saver:
    """Writes files of tensors, one after another: at once, or in a thread from copies made at once.

    What a write has to complain of is raised by the next ``save`` to the same file, or by ``wait``.
    """

    def __init__(self, in_background: bool) -> None:
        self._thread = ThreadPoolExecutor(1, "qknorm-save") if in_background else None
        self._writing: dict[Path, Future[None]] = {}

    def save(self, path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Write tensors as they are now in place of a file's; its last write is done by then."""
        if self._thread is None:
            save_tensors(path, tensors, about)
            return
        if path in self._writing:
            self._writing.pop(path).result()
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self._writing[path] = self._thread.submit(save_tensors, path, copies, about)

    def wait(self) -> None:
        """Until everything is written."""
        while self._writing:
            self._writing.pop(next(iter(self._writing))).result()
