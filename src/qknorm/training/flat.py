"""Many tensors end to end in one buffer, so that one kernel takes them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ALIGN = 64
"""Tensors begin at multiples of so many values, as vectorised kernels want it."""


class Layout(NamedTuple):
    """Where tensors lie in a flat buffer. Tensors of the same shapes have the same layout."""

    starts: list[int]
    size: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Layout:
        starts, size = [], 0
        for tensor in tensors:
            starts.append(size)
            size += -(-tensor.numel() // ALIGN) * ALIGN
        return cls(starts, size)

    def views(self, flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        return [
            flat[start : start + tensor.numel()].view_as(tensor)
            for start, tensor in zip(self.starts, like, strict=True)
        ]


@torch.no_grad()
def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Move tensors of one kind into one flat buffer, which is returned; they stay what they are."""
    layout = Layout.of(tensors)
    flat = torch.zeros(layout.size, dtype=tensors[0].dtype, device=tensors[0].device)
    for tensor, place in zip(tensors, layout.views(flat, tensors), strict=True):
        place.copy_(tensor)
        tensor.data = place
    return flat
