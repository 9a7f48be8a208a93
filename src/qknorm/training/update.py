"""Everything after the backward pass in two kernels: clip, Adam, running mean, rounding to bfloat16."""
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qknorm.training.flat import Layout, joined
from qknorm.training.update_kernels import add_up_squares, update_weights

PIECE = 2048
"""Values that one program takes."""
WARPS = 4
VECTOR = 16
"""Bytes that a GPU loads at once from addresses that are multiples of it."""
CLIP_EPSILON = 1e-6
"""As ``torch.nn.utils.clip_grad_norm_`` has it."""


class FlatUpdate:
    """``torch.optim.Adam`` or ``AdamW`` by kernels; settings and state stay the optimiser's.

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
        self.decoupled = isinstance(optimizer, torch.optim.AdamW)
        settings = optimizer.param_groups[0]
        self.betas, self.epsilon = settings["betas"], settings["eps"]
        states = [optimizer.state[p] for p in parameters]
        self.steps = states[0]["step"]  # of all parameters alike
        for state in states:
            state["step"] = self.steps
        self.weights = joined(parameters)
        self.first, self.second = (joined([s[name] for s in states]) for name in ("exp_avg", "exp_avg_sq"))
        layout, device = Layout.of(parameters), self.weights.device
        self.rounded = _room_for_rounded(layout, parameters, rounded)
        decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
        self._decays = torch.tensor([decays[id(p)] for p in parameters], device=device)
        self._lay_out(layout, [p.numel() for p in parameters], device)
        self._powers = torch.tensor(self.betas, dtype=torch.float64, device=device)
        self._addresses = torch.zeros(len(parameters), dtype=torch.int64, device=device)
        self._halves = torch.zeros(len(parameters), dtype=torch.int32, device=device)
        self._pointed: tuple[list[int], list[bool]] = [], []
        self._aligned = False

    def follow(self) -> None:
        """Round the weights as they are now."""
        if self.rounded is not None:
            self.rounded.copy_(self.weights)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The length of all gradients together, which ``apply`` will use; contiguous, float32 or bfloat16."""
        self._pointed = [g.data_ptr() for g in gradients], [g.dtype == torch.bfloat16 for g in gradients]
        self._aligned = all(address % VECTOR == 0 for address in self._pointed[0])
        if not (self.weights.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.point()
        add_up_squares[(self._pieces,)](
            self._addresses, self._halves, self._owner, self._begin, self._count, self._parts,
            PIECE, self._aligned,
        )  # fmt: skip
        return self._parts.sum().sqrt()

    def point(self) -> None:
        """Tell the kernels where the gradients lie; after capture they lie there in every replay."""
        addresses, halves = self._pointed
        self._addresses.copy_(torch.tensor(addresses))
        self._halves.copy_(torch.tensor(halves))

    def apply(self, norm: Tensor, skip: Tensor, rate: Tensor, share: Tensor) -> None:
        """Update at this rate, move the mean by this share; nothing of it where ``skip`` is not 0."""
        self.steps += 1.0 - skip
        corrections = (1.0 - self._powers**self.steps).float()
        mean = self.weights if self.mean is None else self.mean
        rounded = self.weights if self.rounded is None else self.rounded
        update_weights[(self._pieces,)](
            self._addresses, self._halves, self._decays, self._owner, self._begin, self._count, self._place,
            self.weights, self.first, self.second, mean, rounded,
            norm, skip, rate, share, corrections,
            self.clip, CLIP_EPSILON, *self.betas, self.epsilon,
            self.decoupled, self.mean is not None, self.rounded is not None,
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
