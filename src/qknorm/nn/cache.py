"""Keys and values kept between decoding steps. Keys are normalised before they come here, once.

Axes: B sequences, H heads, S positions, D width of one head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class SelfCache:
    """What self-attention has seen so far; ``append`` adds the newest positions.

    Room doubles when it runs out, so n steps copy O(n) and not O(n²). For decoding: no gradients flow
    through what is kept.
    """

    def __init__(self, room: int = 32) -> None:
        if room < 1:
            raise ValueError(f"room must be at least 1 position, not {room}")
        self.room = room
        self.length = 0
        self._keys: Tensor | None = None  # (B, H, room, D)
        self._values: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (B, H, new, D) keys and values; returns all of them so far."""
        end = self.length + k.size(-2)
        if self._keys is None or self._values is None:
            while self.room < end:
                self.room *= 2
            self._keys, self._values = _empty_like(k, self.room), _empty_like(v, self.room)
        elif self._keys.size(0) != k.size(0):
            raise ValueError(
                f"the cache holds {self._keys.size(0)} sequences, the new keys {k.size(0)}; "
                "use reorder() when the batch changes"
            )
        elif end > self.room:
            while self.room < end:
                self.room *= 2
            self._keys, self._values = self._grown(self._keys), self._grown(self._values)
        self._keys[:, :, self.length : end] = k.detach()
        self._values[:, :, self.length : end] = v.detach()
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def reorder(self, rows: Tensor) -> None:
        """Keep these sequences, in this order; a beam search picks survivors so."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys.index_select(0, rows), self._values.index_select(0, rows)

    def keep_positions(self, positions: Tensor, room: int) -> None:
        """Keep these positions, (B, kept) for each sequence its own, with room for ``room`` in all.

        With ``rotary`` later calls need their ``turns``: positions no longer are how many there are.
        """
        if self._keys is not None and self._values is not None:
            B, H, old, _ = self._keys.shape
            self.length, self.room = positions.size(1), max(room, positions.size(1))
            filled = F.pad(positions, (0, self.room - self.length))  # what stands past the length is not read
            first = torch.arange(0, B * H * old, old, device=positions.device).view(B, H, 1)
            rows = (first + filled[:, None]).flatten()  # of the buffers seen as (B × H × old, D)
            self._keys, self._values = (
                x.view(B * H * old, x.size(3)).index_select(0, rows).view(B, H, self.room, x.size(3))
                for x in (self._keys, self._values)
            )

    def _grown(self, old: Tensor) -> Tensor:
        new = _empty_like(old, self.room)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new


class CrossCache:
    """Keys and values of a fixed memory: projected and normalised at the first step, then reused."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None  # (B, H, S, D)
        self.values: Tensor | None = None

    @property
    def filled(self) -> bool:
        return self.keys is not None

    def fill(self, k: Tensor, v: Tensor) -> None:
        self.keys, self.values = k.contiguous(), v.contiguous()  # read at every step

    def reorder(self, rows: Tensor) -> None:
        """Keep these sequences, in this order."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)


def _empty_like(x: Tensor, room: int) -> Tensor:
    return torch.empty(*x.shape[:2], room, x.size(-1), dtype=x.dtype, device=x.device)
