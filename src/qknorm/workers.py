"""The processes of one command: one by itself, or several that torchrun started and that share its work.

What they say to each other goes over gloo as numbers and JSON; gradients go over NCCL between GPUs.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from qknorm.errors import LostWorkerError, UserError

PATIENCE = timedelta(hours=1)
"""How long one process waits for another; process 0 may be reading and encoding a large corpus."""
HUNG_SECONDS = 20.0
"""After a SIGTERM, how long a process may wait for one that does not answer; torchrun kills after 30."""
SAID_SECONDS = 5.0
"""How long process 0 has to say what went wrong, before another process says it too."""


class Workers:
    """This process among all of them. With one process every method is trivial and nothing is imported.

    Use it in a ``with`` block. Every process must call the same methods in the same order.
    """

    def __init__(self, device: torch.device, rank: int = 0, size: int = 1) -> None:
        self.device, self.rank, self.size = device, rank, size
        self.stop_asked = False
        """Set, by a signal's handler say, to have all processes stop together: see ``stopping``."""
        self.lost: str | None = None
        """Why another process is held to be gone, if one is."""
        self.advice: str | None = None
        """What to do when another process is gone, once there is more to do than to start again."""
        self._heard = False
        self._waiting_since: float | None = None
        self._told: socket.socket | None = None

    @classmethod
    def start(cls, device: torch.device | str | None = None) -> Workers:
        """The processes that torchrun's environment tells of, or this one alone; each with its device."""
        size = int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1
        wanted = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if size == 1:
            return cls(wanted)
        rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
        if wanted.type == "cuda":
            wanted = _own_gpu(wanted, local)
            torch.cuda.set_device(wanted)
        workers = cls(wanted, rank, size)
        workers._connect()
        return workers

    @property
    def first(self) -> bool:
        """Whether this is process 0, the only one that writes and speaks."""
        return self.rank == 0

    @property
    def launcher(self) -> str:
        """How as many processes are started again; … are options for several machines."""
        here = os.environ.get("LOCAL_WORLD_SIZE", str(self.size))
        return f"torchrun --nproc-per-node={here}{'' if here == str(self.size) else ' …'}"

    @property
    def tells_of_loss(self) -> bool:
        """Whether this process has to say that another is gone: process 0, and 1 in case that was the one."""
        return self.lost is not None and (self.first or (self.rank == 1 and self.advice is not None))

    @property
    def stopping(self) -> bool:
        """Whether any process had been asked to stop by the latest ``total``: the same answer in all."""
        return self.stop_asked if self.size == 1 else self._heard

    def forget_stop(self) -> None:
        """What was asked of earlier work no longer holds."""
        self.stop_asked = self._heard = False

    def total(self, *values: float) -> list[float]:
        """The sums of these over all processes. Requests to stop travel along."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor([float(self.stop_asked), *values], dtype=torch.float64)
        with self._reaching() as distributed:
            distributed.all_reduce(sums)
        asked, *totals = sums.tolist()
        self._heard = asked > 0
        return totals

    def mean_gradients(self, gradients: Sequence[Tensor], weight: float) -> None:
        """Let each gradient be the mean over the processes, this one's counting ``weight`` (they sum to 1).

        One reduction of one flat buffer, and not DistributedDataParallel: how much a process counts is known
        only when its batches are, in a last short update it may have none, and hooks inside the backward pass
        do not go with a step that is captured and replayed. What it costs is in docs/scaling.md.
        """
        if self.size == 1:
            return
        flat = torch.cat([g.flatten() for g in gradients]).mul_(weight)
        with self._reaching() as distributed:
            distributed.all_reduce(flat)
            if self.device.type == "cuda":  # wait here, where a process that is gone is noticed
                torch.cuda.current_stream().synchronize()
        pieces = torch.split(flat, [g.numel() for g in gradients])
        torch._foreach_copy_(
            list(gradients), [new.view_as(g) for new, g in zip(pieces, gradients, strict=True)]
        )

    def add_up(self, tensor: Tensor) -> None:
        """Let a tensor on the device be the sum over the processes."""
        if self.size > 1:
            with self._reaching() as distributed:
                distributed.all_reduce(tensor)

    def take_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Give every process process 0's values of these."""
        if self.size > 1:
            with self._reaching() as distributed, torch.no_grad():
                for tensor in tensors:
                    distributed.broadcast(tensor, 0)

    def gather(self, found: Any) -> list[Any]:
        """What each process found, in JSON's types, in their order; every process gets all of it."""
        if self.size == 1:
            return [found]
        own = torch.frombuffer(bytearray(json.dumps(found).encode()), dtype=torch.uint8)
        with self._reaching() as distributed:
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            distributed.all_gather(sizes, torch.tensor([own.numel()]))
            longest = max(int(size) for size in sizes)
            parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            distributed.all_gather(parts, torch.nn.functional.pad(own, (0, longest - own.numel())))
        return [json.loads(part[: int(n)].numpy().tobytes()) for part, n in zip(parts, sizes, strict=True)]

    def tell(self, words: Any) -> Any:
        """What process 0 says, in JSON's types."""
        return self.gather(words if self.first else None)[0]

    def divide(self, costs: Sequence[int], work: Callable[[list[int]], list[Any]]) -> list[Any]:
        """Items by their number, shared out by cost: ``work`` on each share, all results in order.

        With several processes the results must be of JSON's types.
        """
        if self.size == 1:
            return work(list(range(len(costs))))
        shares = share_out(costs, self.size)
        found: list[Any] = [None] * len(costs)
        for share, part in zip(shares, self.gather(work(shares[self.rank])), strict=True):
            for item, result in zip(share, part, strict=True):
                found[item] = result
        return found

    @contextlib.contextmanager
    def first_alone(self) -> Iterator[None]:
        """Process 0 goes through the block, then all others do, then all go on."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()
        self.wait()

    def wait(self) -> None:
        """Until every process is here."""
        self.gather(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.size == 1:
            return
        if error is None:
            import torch.distributed

            self.wait()  # none leaves while another still needs it
            torch.distributed.destroy_process_group()
            self._end_watch()
        elif isinstance(error, UserError) and not (self.first or self.tells_of_loss):
            time.sleep(SAID_SECONDS)  # where process 0 says the same, torchrun ends this one meanwhile

    def _connect(self) -> None:
        import torch.distributed

        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        own = self.device if self.device.type == "cuda" else None
        try:
            torch.distributed.init_process_group(backend, timeout=PATIENCE, device_id=own)
        except (RuntimeError, ValueError) as error:
            raise LostWorkerError(
                f"Process {self.rank} of {self.size} could not reach the others ({_brief(error)}); start all "
                "of them with torchrun, as docs/scaling.md shows."
            ) from error
        self._watch()

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[Any]:
        """``torch.distributed``, and a sentence in place of its errors."""
        import torch.distributed

        self._waiting_since = time.monotonic()
        try:
            yield torch.distributed
        except RuntimeError as error:
            self.lost = _brief(error)
            raise LostWorkerError(self.loss()) from error
        finally:
            self._waiting_since = None

    def loss(self, advice: str | None = None) -> str:
        """What to say when another process is gone."""
        gone = f"One of the {self.size} processes has ended or cannot be reached ({self.lost})."
        return f"{gone} {advice or self.advice or 'Start again with the same command.'}"

    def _watch(self) -> None:
        """Where handlers of signals cannot run because this process hangs on a lost one, a thread ends it."""
        heard, told = socket.socketpair()
        told.setblocking(False)
        try:
            signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        except ValueError:  # not the main thread: whoever runs us handles signals
            return
        self._told = told

        def watch() -> None:
            while number := heard.recv(1):
                while number[0] == signal.SIGTERM:
                    time.sleep(0.5)
                    since = self._waiting_since
                    if since is not None and time.monotonic() - since > HUNG_SECONDS:
                        self.lost = "it does not answer"
                        if self.tells_of_loss:
                            os.write(2, f"error: {self.loss()}\n".encode())
                        os._exit(2)

        threading.Thread(target=watch, daemon=True).start()

    def _end_watch(self) -> None:
        if self._told is not None:
            signal.set_wakeup_fd(-1)
            self._told.close()


def share_out(costs: Sequence[int], size: int) -> list[list[int]]:
    """The numbers of all items in ``size`` shares of about the same cost, each in rising order.

    The dearest goes first, each to the share that costs least so far (of equal ones, the lower): so share 0
    has an item if any share has, and every share has one if there are as many items as shares.
    """
    shares: list[list[int]] = [[] for _ in range(size)]
    loads = [(0, share) for share in range(size)]
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, share = loads[0]
        shares[share].append(item)
        heapq.heapreplace(loads, (load + max(costs[item], 1), share))
    return [sorted(share) for share in shares]


def _own_gpu(wanted: torch.device, local: int) -> torch.device:
    if str(wanted) != "cuda":
        raise UserError(f"Several processes need a GPU each, not all {wanted}; leave --device out.")
    if local >= (count := torch.cuda.device_count()):
        raise UserError(
            f"There is no GPU for process {local} of this machine, which has {count}; start one process a "
            f"GPU (torchrun --nproc-per-node={count}), or name --device cpu."
        )
    return torch.device("cuda", local)


def _brief(error: Exception) -> str:
    """The first sentence of what torch says, without the place in its source."""
    return re.sub(r"\[\S+:\d+\] ", "", str(error).strip()).split("\n")[0].split(". ")[0].rstrip(".")
