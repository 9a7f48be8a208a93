"""Dynamic batching: sentences that arrive together, from whatever clients, are translated together."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from qknorm.serving.limits import Limits
from qknorm.serving.metrics import Metrics
from qknorm.serving.work import Job, translate_jobs

log = logging.getLogger("qknorm.serving")

LONGEST_RETRY = 60
"""Seconds a refused client is told to wait at most."""


class OverloadedError(Exception):
    """The queue is full; ``retry_after`` is when, in seconds, there may be room again."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class Batcher:
    """A bounded queue of sentences, and one thread that translates them batch by batch.

    The sentence that has waited longest decides the kind of the next batch (model, beam, n-best). Others of
    that kind join it in the order they came, as long as the batch stays within its bound of tokens; a
    sentence that is over the bound on its own is a batch of its own.
    """

    def __init__(
        self,
        limits: Limits,
        metrics: Metrics,
        work: Callable[[Sequence[Job]], list[bytes]] = translate_jobs,
    ) -> None:
        self.limits = limits
        self.metrics = metrics
        self._work = work
        self._waiting: deque[Job] = deque()
        self._arrived = asyncio.Event()
        self._seconds_each = 0.05  # of a sentence lately; a guess until some are done
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qknorm-translate")
        self._loop: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End, when no request runs any more: what is left is dropped, and the thread waited for."""
        assert self._loop is not None
        self.drop(list(self._waiting))
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take all of these jobs, or none of them: then an OverloadedError says when to come again."""
        if len(self._waiting) + len(jobs) > self.limits.queue:
            self.metrics.refused.add(len(jobs))
            seconds = math.ceil(len(self._waiting) * self._seconds_each)
            raise OverloadedError(min(max(1, seconds), LONGEST_RETRY))
        self._waiting.extend(jobs)
        if jobs:
            self._arrived.set()

    def drop(self, jobs: Sequence[Job]) -> None:
        """Forget jobs that nobody waits for any more."""
        unfinished = {job for job in jobs if not job.answer.done()}
        for job in unfinished:
            job.answer.cancel()
        self._waiting = deque(job for job in self._waiting if job not in unfinished)
        self.metrics.dropped.add(len(unfinished))

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                await asyncio.sleep(self.limits.wait)  # after a batch, others have already waited
            if batch := self._take():
                await self._translate(batch)

    def _take(self) -> list[Job]:
        """The next batch off the queue; empty if all that waited was dropped."""
        batch: list[Job] = []
        left: deque[Job] = deque()
        longest = 0
        for job in self._waiting:
            grown = max(longest, job.cost)
            if not batch or (job.kind == batch[0].kind and (len(batch) + 1) * grown <= self._bound(job)):
                batch.append(job)
                longest = grown
            else:
                left.append(job)
        self._waiting = left
        return batch

    def _bound(self, job: Job) -> int:
        return self.limits.batch_tokens or job.served.translator.decoding.batch_tokens

    async def _translate(self, batch: list[Job]) -> None:
        """Translate a batch and give out the answers; if it fails, each sentence gets a try of its own."""
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self._work, batch)
        except Exception as error:
            if len(batch) > 1:
                log.exception("A batch of %d sentences failed; each is tried alone.", len(batch))
                for job in batch:
                    if not job.answer.done():
                        await self._translate([job])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        for job, answer in zip(batch, answers, strict=True):
            if not job.answer.done():
                job.answer.set_result(answer)
        each = (time.monotonic() - began) / len(batch)
        self._seconds_each += 0.2 * (each - self._seconds_each)
        self.metrics.sentences.add(len(batch))
        self.metrics.subwords.add(sum(job.length for job in batch))
        self.metrics.batch_sizes.observe(len(batch))
