"""Everything after the backward pass in two kernels: clip, Adam, running mean, rounding to bfloat16.

Muon takes a third, and the products that make its matrices orthogonal.
"""
# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qknorm.training.ademamix import SLOW, AdEMAMix
from qknorm.training.flat import Layout, joined
from qknorm.training.muon import orthogonal_, step_size
from qknorm.training.update_kernels import add_up_squares, move_means, update_weights

PIECE = 2048
"""Values that one program takes."""
WARPS = 4
VECTOR = 16
"""Bytes that a GPU loads at once from addresses that are multiples of it."""
CLIP_EPSILON = 1e-6
"""As ``torch.nn.utils.clip_grad_norm_`` has it."""
MEAN = "momentum_buffer"


class FlatUpdate:
    """Adam, AdamW, Muon or AdEMAMix by kernels; settings and state stay the optimiser's.

    Args:
        optimizer: its state is there for every parameter; its ``step`` is not used.
        parameters: float32, in the order of their gradients. They move into a flat buffer.
        clip: gradients longer than this are cut to it.
        mean: the running mean of the parameters, in a flat buffer laid out like theirs.
        rounded: for each parameter its bfloat16 copy, kept up to date, or None. They move likewise.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[Tensor],
        clip: float,
        mean: Tensor | None,
        rounded: Sequence[Tensor | None],
    ) -> None:
        self.clip, self.mean = clip, mean
        self.decoupled = isinstance(optimizer, torch.optim.AdamW | AdEMAMix)
        settings = optimizer.param_groups[0]
        self.betas, self.epsilon = settings["betas"], settings["eps"]
        states = [optimizer.state[p] for p in parameters]
        counting = [state for state in states if "step" in state]
        self.steps = counting[0]["step"]  # of all parameters alike
        for state in counting:
            state["step"] = self.steps
        self.weights = joined(parameters)
        self.first = joined([s[MEAN if MEAN in s else "exp_avg"] for s in states])
        # Muon has no second moments; room for them all the same keeps one layout for all buffers.
        self.second = joined([s["exp_avg_sq"] if "exp_avg_sq" in s else s[MEAN].clone() for s in states])
        self.slow = joined([s[SLOW] for s in states]) if isinstance(optimizer, AdEMAMix) else None
        layout, device = Layout.of(parameters), self.weights.device
        self.rounded = _room_for_rounded(layout, parameters, rounded)
        decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
        self._decays = torch.tensor([decays[id(p)] for p in parameters], device=device)
        self._lay_out(layout, [p.numel() for p in parameters], device)
        self._powers = torch.tensor(self.betas, dtype=torch.float64, device=device)
        self._pointed: tuple[list[int], list[bool]] = [], []
        self._aligned = False
        self._turn = _Turned.of(optimizer, parameters)
        self._tables: list[tuple[Tensor, ...]] = []
        self.point_anew()

    def follow(self) -> None:
        """Round the weights as they are now."""
        if self.rounded is not None:
            self.rounded.copy_(self.weights)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The length of all gradients together, which ``apply`` will use; contiguous, float32 or bfloat16."""
        self._pointed = [g.data_ptr() for g in gradients], [g.dtype == torch.bfloat16 for g in gradients]
        self._aligned = all(address % VECTOR == 0 for address in self._pointed[0] + self._turn.addresses)
        if not (self.weights.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.point()
        add_up_squares[(self._pieces,)](
            self._addresses, self._halves, self._owner, self._begin, self._count, self._parts,
            PIECE, self._aligned,
        )  # fmt: skip
        return self._parts.sum().sqrt()

    def point_anew(self) -> None:
        """From here on keep addresses apart from those so far, which an earlier graph goes on using."""
        zeros = torch.zeros_like(self._decays)
        addresses, halves = zeros.to(torch.int64), zeros.to(torch.int32)
        self._addresses, self._halves, self._steps_by = addresses, halves, (addresses.clone(), halves.clone())
        self._tables.append((self._addresses, self._halves, *self._steps_by))

    def point(self) -> None:
        """Tell the kernels where the gradients lie; after capture they lie there in every replay."""
        addresses, halves = self._pointed
        self._addresses.copy_(torch.tensor(addresses))
        self._halves.copy_(torch.tensor(halves))
        turned = self._turn.factors != 0.0
        for mine, theirs, own in zip(
            self._steps_by, (self._addresses, self._halves), (self._turn.where, 1), strict=True
        ):
            mine.copy_(torch.where(turned, own, theirs))

    def apply(self, norm: Tensor, skip: Tensor, rate: Tensor, share: Tensor, slow: Tensor) -> None:
        """Update at this rate, move the mean by this share; nothing of it where ``skip`` is not 0.

        ``slow``: of AdEMAMix's slow mean its weight and how far it moves.
        """
        self.steps += 1.0 - skip
        corrections = (1.0 - self._powers**self.steps).float()
        turn = self._turn
        if turn.stacks:
            move_means[(self._pieces,)](
                self._addresses, self._halves, turn.factors, turn.room,
                self._owner, self._begin, self._count, self._place,
                self.first, turn.flat, norm, skip, self.clip, CLIP_EPSILON, turn.momentum,
                PIECE, self._aligned, num_warps=WARPS,
            )  # fmt: skip
            for stack in turn.stacks:
                orthogonal_(stack)
        mean = self.weights if self.mean is None else self.mean
        rounded = self.weights if self.rounded is None else self.rounded
        slow_mean = self.weights if self.slow is None else self.slow
        update_weights[(self._pieces,)](
            *self._steps_by, self._decays, turn.factors,
            self._owner, self._begin, self._count, self._place,
            self.weights, self.first, self.second, slow_mean, mean, rounded,
            norm, skip, rate, share, slow, corrections,
            self.clip, CLIP_EPSILON, *self.betas, self.epsilon,
            self.decoupled, bool(turn.stacks), self.slow is not None,
            self.mean is not None, self.rounded is not None,
            PIECE, self._aligned, num_warps=WARPS,
        )  # fmt: skip

    def _lay_out(self, layout: Layout, sizes: list[int], device: torch.device) -> None:
        """Cut tensors into pieces: whose each is, where it begins in its tensor and buffer, its size."""
        rows = [
            (number, begin, start + begin, min(PIECE, size - begin))
            for number, (start, size) in enumerate(zip(layout.starts, sizes, strict=True))
            for begin in range(0, size, PIECE)
        ]
        owner, begin, place, count = zip(*rows, strict=True)
        self._owner, self._count = (torch.tensor(x, dtype=torch.int32, device=device) for x in (owner, count))
        self._begin, self._place = (torch.tensor(x, dtype=torch.int64, device=device) for x in (begin, place))
        self._pieces = len(rows)
        self._parts = torch.empty(self._pieces, device=device)


class _Turned(NamedTuple):
    """Room for the matrices that Muon makes orthogonal, those of one shape end to end; empty for Adam."""

    flat: Tensor  # bfloat16
    stacks: list[Tensor]  # (n, r, c) each, views of it
    factors: Tensor  # of each parameter its step for an orthogonal matrix at rate 1; 0 for Adam's
    room: Tensor  # where each begins in the room
    where: Tensor  # and its address
    addresses: list[int]
    momentum: float

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> _Turned:
        device, groups = parameters[0].device, [g for g in optimizer.param_groups if "parts" in g]
        shapes = {
            id(p): (n, p.size(0) // n, p.size(1))
            for group in groups
            for p, n in zip(group["params"], group["parts"], strict=True)
        }
        flat = torch.zeros(sum(math.prod(s) for s in shapes.values()), dtype=torch.bfloat16, device=device)
        factors, room = torch.zeros(len(parameters)), torch.zeros(len(parameters), dtype=torch.int64)
        stacks, end = [], 0
        for shape in sorted({s[1:] for s in shapes.values()}):
            start = end
            for number, parameter in enumerate(parameters):
                if shapes.get(id(parameter), (0,))[1:] == shape:
                    room[number], end = end, end + parameter.numel()
            stacks.append(flat[start:end].view(-1, *shape))
            mine = [shapes.get(id(p), (0,))[1:] == shape for p in parameters]
            factors[torch.tensor(mine)] = step_size(stacks[-1])
        where = flat.data_ptr() + room * flat.element_size()
        momentum = groups[0]["momentum"] if groups else 0.0
        return cls(
            flat, stacks, factors.to(device), room.to(device), where.to(device),
            where[factors != 0].tolist(), momentum,
        )  # fmt: skip


@torch.no_grad()
def _room_for_rounded(
    layout: Layout, parameters: Sequence[Tensor], rounded: Sequence[Tensor | None]
) -> Tensor | None:
    """A flat buffer that the rounded copies move into; the room of others in it goes unused."""
    kinds = {copy.dtype for copy in rounded if copy is not None}
    if not kinds:
        return None
    flat = torch.zeros(layout.size, dtype=kinds.pop(), device=parameters[0].device)
    for copy, place in zip(rounded, layout.views(flat, parameters), strict=True):
        if copy is not None:
            place.copy_(copy)
            copy.data = place
    return flat
