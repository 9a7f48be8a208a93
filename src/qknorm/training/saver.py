"""Checkpoints written while training goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qknorm.tensors import save_tensors


class Saver:
    """Writes files of tensors, one after another: at once, or in a thread from copies made at once.

    What a write has to complain of is raised by the next ``save`` to the same file, or by ``wait``.
    """

    def __init__(self, in_background: bool) -> None:
        self._thread = ThreadPoolExecutor(1, "qknorm-save") if in_background else None
        self._writing: dict[Path, Future[None]] = {}
        self._pinned: dict[Path, dict[str, Tensor]] = {}

    def save(self, path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Write tensors as they are now in place of a file's; its last write is done by then."""
        if self._thread is None:
            save_tensors(path, tensors, about)
            return
        if path in self._writing:
            self._writing.pop(path).result()
        self._writing[path] = self._thread.submit(save_tensors, path, self._copies(path, tensors), about)

    def wait(self, path: Path | None = None) -> None:
        """Until everything is written, or the one file named."""
        for waited in list(self._writing) if path is None else [path]:
            if waited in self._writing:
                self._writing.pop(waited).result()

    @torch.no_grad()
    def _copies(self, path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies on the CPU; those of a GPU's tensors in pinned memory, kept for the next save."""
        pinned = self._pinned.setdefault(path, {})
        copies = {}
        for name, tensor in tensors.items():
            if not tensor.is_cuda:
                copies[name] = tensor.clone()
                continue
            room = pinned.get(name)
            if room is None or (room.shape, room.dtype) != (tensor.shape, tensor.dtype):
                room = pinned[name] = torch.empty_like(tensor, device="cpu", pin_memory=True)
            copies[name] = room.copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return copies
