"""Passes over the training text: the batches of each update, made ahead of their use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple

import numpy as np

from qknorm.config import TrainingSettings
from qknorm.data import Batch, Batches, BpeDropout, EncodedPairs
from qknorm.data.batches import BothWays, MixedBatches
from qknorm.data.concatenation import concatenated
from qknorm.workers import Workers, share_out

AHEAD = 16
"""Updates whose batches are made before they are asked for."""
CONCATENATION, DIRECTION = 61, 67
"""Tell the random numbers of couples, and of directions, from those of batches."""


class Update(NamedTuple):
    """What one update learns from, and where that leaves the passes."""

    batches: list[Batch]
    """Those of this process."""
    taken: int
    """Batches of all processes."""
    pass_number: int
    position: int
    """Batches of that pass taken so far."""


class Passes:
    """Pass after pass from the seed and its number alone.

    With BPE-dropout each pass has the same text in other subwords: other lengths, other batches. So it has
    with mixed batches, where sentences are concatenated, and where some are turned round. The next one is
    then made in the background while a pass is used.
    """

    def __init__(
        self,
        corpus: EncodedPairs,
        dropout: BpeDropout | None,
        settings: TrainingSettings,
        workers: Workers,
        dropout_passes: int | None = None,
    ) -> None:
        """``dropout`` cuts the text of the first ``dropout_passes``, or of all."""
        self._workers = workers
        self._settings = settings
        self._dropout = dropout
        self._dropout_passes = dropout_passes
        self._corpus = corpus
        mixed = settings.batching == "mixed"
        varies = dropout is not None or mixed or settings.concatenate > 0.0 or settings.backward > 0.0
        self._fixed = None if varies else self._cut(corpus, 0)
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
                    self._made[wanted] = self._maker.submit(self._make, wanted)
            for old in [made for made in self._made if made < number - 1]:
                del self._made[old]
            future = self._made[number]
        return future.result()

    def updates(self, number: int, position: int, done: int) -> Iterator[Update]:
        """Every update from here on, without end.

        Args:
            number: the pass under way.
            position: batches of it already taken.
            done: batches of this epoch already taken; its last update may have fewer than the others.
        """
        settings = self._settings
        batches, order = self.batches(number), self._order(number)
        while True:
            left = (settings.epoch_batches or len(batches)) - done
            places: list[tuple[Batches, int]] = []
            while len(places) < min(settings.accumulate, left):
                if position == len(batches):
                    number, position = number + 1, 0
                    batches, order = self.batches(number), self._order(number)
                places.append((batches, order[position]))
                position += 1
            done += len(places)
            yield Update(self._own(places), len(places), number, position)
            if done >= (settings.epoch_batches or len(batches)):
                done = 0

    def _own(self, places: list[tuple[Batches, int]]) -> list[Batch]:
        """Of the batches of an update those that this process takes; each takes about as many subwords."""
        costs = [int(batches.target_tokens[number]) for batches, number in places]
        mine = share_out(costs, self._workers.size)[self._workers.rank]
        return [batches.batch(number) for batches, number in (places[i] for i in mine)]

    def _order(self, number: int) -> list[int]:
        return self.batches(number).pass_order(number).tolist()  # type: ignore[no-any-return]

    def _make(self, number: int) -> Batches:
        settings, corpus = self._settings, self._corpus
        if self._dropout is not None and _among_first(number, self._dropout_passes):
            corpus = self._dropout.pairs(number)
        if settings.backward == 0.0 or not _among_first(number, settings.backward_passes):
            return self._one_way(corpus, number)
        order = np.random.default_rng([settings.seed, number, DIRECTION]).permutation(len(corpus))
        back, forth = np.split(order, [round(settings.backward * len(corpus))])
        turned = self._corpus.chosen(back).turned()
        return BothWays(self._one_way(corpus.chosen(forth), number), self._one_way(turned, number))

    def _one_way(self, corpus: EncodedPairs, number: int) -> Batches:
        settings = self._settings
        if settings.concatenate > 0.0 and _among_first(number, settings.concatenate_passes):
            seed = [settings.seed, number, CONCATENATION]
            corpus = concatenated(corpus, settings.concatenate, settings.batch_tokens - 1, seed)
        return self._cut(corpus, number)

    def _cut(self, corpus: EncodedPairs, number: int) -> Batches:
        budget, seed = self._settings.batch_tokens, self._settings.seed
        if self._settings.batching == "mixed":
            return MixedBatches(corpus, budget, seed, number)
        return Batches(corpus, budget, seed)


def _among_first(number: int, passes: int | None) -> bool:
    return passes is None or number < passes


class Ahead:
    """An endless stream whose next items are made in a thread; a context manager that ends it."""

    def __init__(self, stream: Iterator[Update]) -> None:
        self._queue: queue.Queue[Update | BaseException] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(stream,), name="qknorm-batches", daemon=True)
        self._thread.start()

    def __next__(self) -> Update:
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

    def _fill(self, stream: Iterator[Update]) -> None:
        try:
            for item in stream:
                if self._closed.is_set():
                    return
                self._queue.put(item)
        except BaseException as error:  # handed to whoever asks for the next item
            self._queue.put(error)
