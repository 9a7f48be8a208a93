"""Where a token stands: sinusoids that are added to its embedding, or angles by which its heads are turned.

Axes: E model width, D width of one head, H heads, R rows of a packed buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qknorm.nn.triton_support import transformed


class Positions(nn.Module):
    """A fixed table with a row for every position; it grows when a longer sequence comes.

    The table follows the module's device and dtype. It is no buffer: those are sent from process to process
    (DistributedDataParallel), and must not differ in size.
    """

    table: Tensor
    dtype: torch.dtype | None = None
    """Of the table; None: that of the model around it."""

    def __init__(self, width: int, room: int, device: torch.device | str | None) -> None:
        super().__init__()
        self.width = width
        self.table = self._compute(room, torch.empty(0, device=device).device)

    def _compute(self, room: int, device: torch.device) -> Tensor:
        raise NotImplementedError

    def _angles(self, room: int, base: float, device: torch.device) -> Tensor:
        """position · base^(−2i / width) for each pair i, (room, width / 2) in float64."""
        pair = torch.arange(0, self.width, 2, dtype=torch.float64, device=device)
        rate = torch.exp(pair * (-math.log(base) / self.width))
        return torch.arange(room, dtype=torch.float64, device=device)[:, None] * rate

    def upto(self, length: int, device: torch.device | None = None) -> Tensor:
        """A table of at least ``length`` positions, (≥ length, width), on this device or where it was."""
        table = self.table
        device = table.device if device is None else device
        if length <= table.size(0) and table.device == device:
            return table
        room = table.size(0) if length <= table.size(0) else max(length, 2 * table.size(0))
        with torch.inference_mode(False):  # training may need it later
            table = self._compute(room, device).to(table.dtype)
        if not torch.compiler.is_compiling() and type(table) is Tensor and not transformed(table):
            self.table = table
        return table

    def forward(self, length: int, offset: int = 0, device: torch.device | None = None) -> Tensor:
        """Positions offset … offset + length − 1, (length, width)."""
        return self.upto(offset + length, device)[offset : offset + length]

    def at(self, positions: Tensor, max_length: int) -> Tensor:
        """The given positions, each below ``max_length``; (…, width)."""
        return F.embedding(positions, self.upto(max_length, positions.device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        like = fn(self.table.new_empty(0))
        self.table = self._compute(self.table.size(0), like.device).to(self.dtype or like.dtype)
        return moved


class SinusoidalPositions(Positions):
    """Sinusoids to be added to embeddings of width E.

    ``odd="cosine"`` is Vaswani et al. (2017): sine in even dimensions, cosine in odd ones.
    ``odd="sine"`` is the table of the paper's code, which has sine in both.
    """

    def __init__(
        self,
        embedding_dim: int,
        odd: str = "cosine",
        room: int = 512,
        device: torch.device | str | None = None,
    ) -> None:
        if odd not in ("cosine", "sine"):
            raise ValueError(f"odd must be 'cosine' or 'sine', not {odd!r}")
        if embedding_dim % 2:
            raise ValueError(f"embedding_dim must be even, not {embedding_dim}")
        self.odd, self.embedding_dim = odd, embedding_dim
        super().__init__(embedding_dim, room, device)

    def _compute(self, room: int, device: torch.device) -> Tensor:
        angle = self._angles(room, 10000.0, device)
        odd = angle.cos() if self.odd == "cosine" else angle.sin()
        return torch.stack([angle.sin(), odd], dim=-1).flatten(-2).float()  # (room, E)

    def extra_repr(self) -> str:
        return f"{self.width}, odd={self.odd!r}"


class RotaryPositions(Positions):
    """Angles by which heads of width D are turned (Su et al. 2021), so that logits know distances.

    Values i and i + D / 2 of a query or a key, as a point of the plane, turn by position · base^(−2i / D);
    Llama and Qwen pair them so. The product of a turned query and a turned key depends on how far apart they
    stand, not on where. Turning changes no length: normalised vectors stay normalised.

    A row of the table is D / 2 cosines, then D / 2 sines, in float32 whatever the model's dtype.
    """

    dtype = torch.float32

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        room: int = 512,
        device: torch.device | str | None = None,
    ) -> None:
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"head_dim must be even and at least 2, not {head_dim}: values turn in pairs")
        if not (math.isfinite(base) and base > 1.0):
            raise ValueError(f"base must be a finite number above 1, not {base!r}")
        self.base = float(base)
        super().__init__(head_dim, room, device)

    def _compute(self, room: int, device: torch.device) -> Tensor:
        angle = self._angles(room, self.base, device)
        return torch.cat([angle.cos(), angle.sin()], dim=-1).float()  # (room, D)

    def extra_repr(self) -> str:
        return f"{self.width}, base={self.base:g}"


def turn(x: Tensor, turns: Tensor) -> Tensor:
    """Queries or keys (…, D) turned by rows of ``RotaryPositions`` that broadcast against them."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = turns.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def check_turns(
    turns: Tensor, width: int, count: int, batch: int | None = None, what: str = "queries"
) -> None:
    """Refuse rows that do not go with so many queries, or keys; without ``batch`` they are packed."""
    allowed: list[tuple[int, ...]] = [(count, width)]
    if batch is not None:
        allowed += [(1, width), (batch, count, width), (batch, 1, width)]
    if tuple(turns.shape) not in allowed:
        raise ValueError(
            f"{'turns' if what == 'queries' else 'key_turns'} must be rows of rotary for the {count} {what}, "
            f"{' or '.join(str(shape) for shape in dict.fromkeys(allowed))}, not {tuple(turns.shape)}"
        )
