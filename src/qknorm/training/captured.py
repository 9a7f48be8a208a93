"""The step on a GPU: compiled, captured once with clipping, optimiser and averaging, and replayed.

Every batch goes into flat buffers of one size (``Room``), so there is one shape, one compilation and one
graph. What changes from update to update (subwords, learning rate, weight of the average) lies in a block
of memory that is copied to the device ahead of each replay. Nothing waits for the device: outcomes
collect there and are read some updates later.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qknorm.config import TrainingSettings
from qknorm.data import Batch
from qknorm.model import Transformer
from qknorm.nn.aside import Aside
from qknorm.nn.triton_support import HAS_TRITON, do_without_triton, triton_failure
from qknorm.training.averaging import Averaging
from qknorm.training.halves import HalfTwin
from qknorm.training.inputs import Inputs, Room
from qknorm.training.loss import can_fuse_loss
from qknorm.training.regions import Regions, compiled
from qknorm.training.schedule import slow_at
from qknorm.training.step import Outcome, Step, empty_slots
from qknorm.workers import Workers

if HAS_TRITON:
    from qknorm.training.update import FlatUpdate

KEPT = 128
"""Outcomes that collect on the device before they are read."""
BLOCKS = 8
"""Batches that may be on their way to the device."""
RATE, SHARE, WEIGHT, SLOW = 0, 1, 2, slice(4, 6)
"""Places of the numbers that come with a batch: learning rate, 1 / target subwords, weight of the average,
and the two of ``slow_at``."""
NUMBERS = 8
CLIP_EPSILON = 1e-6
"""As ``torch.nn.utils.clip_grad_norm_`` has it."""
WITHOUT_KERNELS = "Training goes on without compiled kernels: Triton does not work here ({})"
WARM_UP = 3
"""Rounds before capture, which let libraries choose their kernels and take their memory."""


class CapturedStep(Step):
    """``Step`` for a GPU. On another device it is the same, uncaptured.

    Args:
        room: the size of the buffers.
        compiles: False to leave the compiler out.
        say: gets a line where compiling or capturing fails, and training goes on without.
        cache: a folder that keeps compiled code for the next start.
    """

    rates_on_device = True

    def __init__(
        self,
        model: Transformer,
        settings: TrainingSettings,
        device: torch.device,
        averaging: Averaging,
        workers: Workers | None,
        room: Room,
        say: Callable[[str], None],
        compiles: bool = True,
        cache: Path | None = None,
        source_subwords: Tensor | None = None,
    ) -> None:
        super().__init__(model, settings, device, averaging, workers, source_subwords)
        self.room = room
        self.say = say
        if cache is not None:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
            os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))  # of our own kernels
        failure = triton_failure(device) if device.type == "cuda" else None
        self.kernels = device.type == "cuda" and failure is None
        self.compiles = compiles and failure is None  # on a GPU PyTorch's compiler works through Triton
        if compiles and failure is not None:
            say(WITHOUT_KERNELS.format(failure))
        self.kept = torch.zeros(KEPT, 4, device=device)  # loss, nll, gradient norm, finite
        self._waiting: list[tuple[int, float, int]] = []  # step, rate, tokens of outcomes not read yet
        self._block = torch.zeros(NUMBERS + room.size, dtype=torch.int32, device=device)
        self._hosts = [_host_block(self._block) for _ in range(BLOCKS)]
        self._copied = [torch.Event(device) for _ in range(BLOCKS)] if device.type == "cuda" else []
        self._numbers = self._block[:NUMBERS].view(torch.float32)
        self._inputs = room.unpack(self._block[NUMBERS:])
        self._dry = torch.zeros((), device=device)  # 1: go through everything and change nothing
        self._outcome = torch.zeros(4, device=device)
        self._sums = torch.zeros(2, device=device)  # loss and nll of the batches of this update
        self._gradients: list[Tensor] = []  # summed over the batches of this update, where there are several
        self._arrange()
        self._takes: list[Callable[[], object]] = []  # what is done for each batch, by its direction …
        self._end: Callable[[], object] = self._finish  # … and at the end of an update
        self._sent = 0
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def _arrange(self) -> None:
        """Choose what computes loss and gradients, by whether there are kernels."""
        model = self.model
        self.fused = model.fuses(torch.empty(1, model.settings.d_model, device=self.device))
        self._halves = HalfTwin(model, with_biases=not self.fused) if self.half else None
        self._flat: FlatUpdate | None = None
        self._body = model if self._halves is None else self._halves.twin
        self._learned = self.parameters if self._halves is None else self._halves.parameters
        self._weights_aside = Aside(self.device).used if self.fused else nullcontext
        self._loss: Callable[[Inputs], tuple[Tensor, Tensor]] = lambda inputs: self.loss(inputs, self._body)

    @property
    def accumulates(self) -> bool:
        """Whether an update may have several batches, and so two parts."""
        return self.settings.accumulate > 1 or self.workers.size > 1

    def prepare(self, largest: Batch) -> None:
        """Compile, capture, and so try the largest batch there can be. Weights and state stay as they are."""
        self.model.make_room(self.room.longest)
        self._tables = self.model.tables()  # captured code goes on reading these, should they grow
        empty_slots(self.optimizer, self.device)
        self._gradients = [torch.zeros_like(p) for p in self.parameters] if self.accumulates else []
        self._send(largest, 0.0, 1, 0.0, 0)
        self._dry.fill_(1.0)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            try:
                self._warm_up()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler may say of a kernel
                if not self.kernels:
                    raise
                self._do_without_kernels(error)
                self._warm_up()
            if self.device.type == "cuda":
                self._capture()
        self._dry.zero_()

    def _warm_up(self) -> None:
        """Go through everything some times, without effect."""
        self._body.train()
        if self.kernels:
            copies = [None] * len(self.parameters) if self._halves is None else self._halves.copies
            clip = self.settings.clip or math.inf
            self._flat = FlatUpdate(self.optimizer, self.parameters, clip, self.averaging.flat(), copies)
            self._flat.follow()
        else:
            self.averaging.join()
        if self.compiles and not (self.fused and self._fuses_loss()):  # kernels leave nothing to compile
            self._compile()
        work: Callable[[bool], object] = self._learn if self.accumulates else self._whole
        self._takes = [partial(work, way) for way in self.ways]
        self._end = self._finish if self.accumulates else lambda: None
        for _ in range(WARM_UP):
            for take in self._takes:
                take()
                self._end()

    def _do_without_kernels(self, error: Exception) -> None:
        """Triton works, but not for all that is needed here (too old a GPU): go on as if it did not."""
        failure = _first_line(error)
        logging.getLogger(__name__).debug("a kernel failed", exc_info=error)
        do_without_triton(self._block.device, failure)
        self.kernels = self.compiles = False
        self.say(WITHOUT_KERNELS.format(failure))
        self._arrange()
        self._sums.zero_()
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()  # ``FlatUpdate`` lets them share one

    def update(self, batches: Sequence[Batch], rate: float, step: int) -> None:
        tokens = joined = sum(batch.target_tokens for batch in batches)
        weight = self.averaging.weight(step)
        if not self._graphs:
            self._body.train()
        for batch in batches:
            self._send(batch, rate, tokens, weight, step)
            self._takes[batch.backward]()
        if self.workers.size > 1:
            if not batches:
                self._send(None, rate, 1, weight, step)
            joined = int(self.workers.total(tokens)[0])
            self.workers.mean_gradients(self._gradients, tokens / joined)
            self.workers.add_up(self._sums)
        self._end()
        self.kept[len(self._waiting)].copy_(self._outcome)
        self._waiting.append((step, rate, joined))
        if len(self._waiting) == KEPT:
            self._read()

    def outcomes(self, wait: bool = False) -> list[Outcome]:
        if wait:
            self._read()
        return super().outcomes()

    def busy(self) -> bool:
        return not torch.cuda.current_stream(self.device).query() if self.device.type == "cuda" else False

    def _read(self) -> None:
        rows = self.kept[: len(self._waiting)].tolist()  # waits for the device
        for (step, rate, tokens), (loss, nll, norm, finite) in zip(self._waiting, rows, strict=True):
            self._done.append(Outcome(step, rate, tokens, loss, nll, norm, bool(finite)))
        self._waiting = []

    def inputs(self, batch: Batch) -> Inputs:
        flat = np.empty(self.room.size, np.int32)
        self.room.pack(batch, flat)
        return self.room.unpack(torch.from_numpy(flat).to(self.device))._replace(backward=batch.backward)

    def _send(self, batch: Batch | None, rate: float, tokens: int, weight: float, step: int) -> None:
        """Start copying a batch, and the numbers that go with it, to the device."""
        turn = self._sent % BLOCKS
        self._sent += 1
        host = self._hosts[turn]
        if self._copied:
            self._copied[turn].synchronize()
        if batch is not None:
            self.room.pack(batch, host[NUMBERS:].numpy())
        numbers = host[:NUMBERS].view(torch.float32)
        numbers[RATE], numbers[SHARE], numbers[WEIGHT] = rate, 1.0 / tokens, weight
        numbers[SLOW] = torch.tensor(slow_at(step, self.settings))
        self._block.copy_(host, non_blocking=True)
        if self._copied:
            self._copied[turn].record()

    def _learn(self, backward: bool) -> list[Tensor]:
        """Forward and backward of the batch in the buffers; the gradients of this update so far."""
        if self._halves is not None and self._flat is None:
            self._halves.follow()
        with self._weights_aside():
            loss, nll = self._loss(self._inputs._replace(backward=backward))
            gradients = list(torch.autograd.grad(loss * self._numbers[SHARE], self._learned))
        if self._halves is not None and (self._flat is None or self.accumulates):
            gradients = self._halves.widened(gradients)
        self._sums += torch.stack([loss.detach(), nll])
        if not self.accumulates:
            return gradients
        torch._foreach_add_(self._gradients, gradients)
        return self._gradients

    @torch.no_grad()
    def _apply(self, gradients: list[Tensor]) -> None:
        """Clip, update, average; all of it without effect where something is not finite."""
        if self._flat is not None:
            gradients = [gradient.contiguous() for gradient in gradients]
            norm = self._flat.norm(gradients)
        else:
            norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        finite = self._sums.isfinite().all() & norm.isfinite()
        skip = torch.maximum((~finite).float(), self._dry)
        if self._flat is not None:
            self._flat.apply(norm, skip, self._numbers[RATE], self._numbers[WEIGHT], self._numbers[SLOW])
        else:
            self._optimize(gradients, norm, skip)
        self._outcome.copy_(torch.stack([*self._sums, norm, finite.float()]))
        self._sums.zero_()
        if self.accumulates:
            torch._foreach_zero_(self._gradients)

    def _optimize(self, gradients: list[Tensor], norm: Tensor, skip: Tensor) -> None:
        """What ``FlatUpdate`` does, by the optimiser itself."""
        clip = self.settings.clip or math.inf
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in self.optimizer.param_groups:
            group["lr"].copy_(self._numbers[RATE])
            if "slow" in group:
                group["slow"].copy_(self._numbers[SLOW])
        fused: Any = self.optimizer  # divides gradients by the one and heeds the other, as for GradScaler
        fused.grad_scale = ((norm + CLIP_EPSILON) / clip).clamp(min=1.0)
        fused.found_inf = skip
        self.optimizer.step()
        self.averaging.follow(self._numbers[WEIGHT] * (1.0 - skip))
        for parameter in self.parameters:
            parameter.grad = None

    def _compile(self) -> None:
        """Compile layers and loss; where that fails, leave them as they are and tell the user."""
        plain = self.head

        def loss(inputs: Inputs) -> tuple[Tensor, Tensor]:
            with regions.in_place():
                return self.loss(inputs, self._body)

        try:
            regions = Regions(self._body)
            if not self._fuses_loss():
                self.head = compiled(plain)  # type: ignore[method-assign]
            self._try(loss)
            self._loss = loss
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler may say: training goes on without it
            logging.getLogger(__name__).debug("compiling failed", exc_info=error)
            self.head = plain  # type: ignore[method-assign]
            if self.kernels:
                self._try(self._loss)  # it raises where a kernel is to blame
            self.say(f"Training goes on without the compiler, which failed: {_first_line(error)}")

    def _fuses_loss(self) -> bool:
        return can_fuse_loss(self._block.new_empty(0, dtype=torch.float32))

    def _try(self, loss: Callable[[Inputs], tuple[Tensor, Tensor]]) -> None:
        with self._weights_aside():
            found, _ = loss(self._inputs)
            torch.autograd.grad(found, self._learned)

    def _finish(self) -> None:
        self._apply(self._gradients)

    def _whole(self, backward: bool) -> None:
        self._apply(self._learn(backward))

    def _capture(self) -> None:
        """Record the whole update, or where it has several batches its two parts, to be replayed."""
        try:
            takes: list[Callable[[], object]] = [self._recorded(take) for take in self._takes]
            self._end = self._recorded(self._end) if self.accumulates else self._end
            self._takes = takes
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.say(f"Training goes on without capturing its step, which failed: {_first_line(error)}")

    def _recorded(self, work: Callable[[], object]) -> Callable[[], None]:
        torch.cuda.synchronize(self.device)
        if self._flat is not None:
            self._flat.point_anew()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graphs[0].pool() if self._graphs else None):
            work()
        self._graphs.append(graph)
        if self._flat is not None:
            self._flat.point()
        return graph.replay


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _host_block(like: Tensor) -> Tensor:
    block = torch.zeros_like(like, device="cpu")
    return block.pin_memory() if like.is_cuda else block
