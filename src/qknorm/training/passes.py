"""Passes over the training text: the batches of each and their order, made ahead of their use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from qknorm.config import TrainingSettings
from qknorm.data import Batch, Batches, BpeDropout, EncodedPairs
from qknorm.data.batches import Rows

AHEAD = 16
"""Batches that are made before they are asked for."""


class Passes:
    """Pass after pass from the seed and its number alone.

    With BPE-dropout each pass has the same text in other subwords: other lengths, other batches. The next
    one is then made in the background while a pass is used.
    """

    def __init__(self, corpus: EncodedPairs, dropout: BpeDropout | None, settings: TrainingSettings) -> None:
        self._settings = settings
        self._dropout = dropout
        self._fixed = None if dropout is not None else self._cut(corpus)
        self._made: dict[int, Future[Batches]] = {}
        self._maker = ThreadPoolExecutor(1, "qknorm-pass")
        self._lock = threading.Lock()

    def batches(self, number: int) -> Batches:
        """The batches of a pass."""
        if self._fixed is not None:
            return self._fixed
        with self._lock:
            for wanted in (number, number + 1):
                if wanted not in self._made:
                    self._made[wanted] = self._maker.submit(self._drop_out, wanted)
            for old in [made for made in self._made if made < number - 1]:
                del self._made[old]
            future = self._made[number]
        return future.result()

    def stream(self, number: int, position: int) -> Iterator[Batch]:
        """Every batch from this one on, without end."""
        while True:
            batches = self.batches(number)
            order: Rows = batches.pass_order(number)
            for chosen in order[position:]:
                yield batches.batch(int(chosen))
            number, position = number + 1, 0

    def _drop_out(self, number: int) -> Batches:
        assert self._dropout is not None
        return self._cut(self._dropout.pairs(number))

    def _cut(self, corpus: EncodedPairs) -> Batches:
        return Batches(corpus, self._settings.batch_tokens, self._settings.seed)


class Ahead:
    """An endless stream whose next items are made in a thread; a context manager that ends it."""

    def __init__(self, stream: Iterator[Batch]) -> None:
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(stream,), name="qknorm-batches", daemon=True)
        self._thread.start()

    def __next__(self) -> Batch:
        found = self._queue.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def __iter__(self) -> Ahead:
        return self

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        while self._thread.is_alive():  # it may be waiting for room
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue

    def _fill(self, stream: Iterator[Batch]) -> None:
        try:
            for item in stream:
                if self._closed.is_set():
                    return
                self._queue.put(item)
        except BaseException as error:  # handed to whoever asks for the next item
            self._queue.put(error)
