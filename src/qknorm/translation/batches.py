"""Padded batches of sentences of like length, within a bound of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qknorm.ids import PAD


def by_length(
    lengths: Sequence[tuple[int, ...]], cost: Callable[[int, tuple[int, ...]], int], budget: int
) -> list[list[int]]:
    """Cut sentences, sorted by length, into batches whose cost stays within the budget.

    The longest come first, so that memory runs out at once or never. A sentence that is over the budget
    on its own is a batch of its own.

    Args:
        lengths: what makes a sentence long, most important first.
        cost: of so many sentences, given the greatest of each length among them.
        budget: what a batch may cost.
    """
    batches: list[list[int]] = []
    longest: tuple[int, ...] = ()
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], -i), reverse=True):
        if batches:
            grown = tuple(map(max, longest, lengths[i]))
            if cost(len(batches[-1]) + 1, grown) <= budget:
                batches[-1].append(i)
                longest = grown
                continue
        batches.append([i])
        longest = lengths[i]
    return batches


def pairs_by_length(lengths: Sequence[tuple[int, int]], batch_tokens: int) -> list[list[int]]:
    """Batches of pairs by the lengths of both sides; sentences × longest (source + target) is bounded."""
    return by_length(lengths, lambda count, longest: count * sum(longest), batch_tokens)


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of ids as one (rows, longest) tensor, PAD at the end of the shorter ones."""
    longest = max(map(len, rows))
    return send(torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows]), device)


def send(x: Tensor, device: torch.device) -> Tensor:
    """The same on the device, without waiting for what a GPU is doing."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
