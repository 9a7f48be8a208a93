"""The queue: what is translated together, what is refused, what is dropped."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="needs the server's packages: pip install qknorm[serve]")

from qknorm.serving import Limits
from qknorm.serving.batcher import Batcher, OverloadedError
from qknorm.serving.metrics import Metrics
from qknorm.serving.work import Job


class Work:
    """Translates by turning round; notes its batches; can be held up, and made to fail on a line."""

    def __init__(self):
        self.batches = []
        self.go = threading.Event()
        self.go.set()
        self.broken = None

    def __call__(self, jobs):
        self.batches.append([job.line for job in jobs])
        assert self.go.wait(10)
        if self.broken in self.batches[-1]:
            raise RuntimeError(self.broken)
        return [{"text": job.line[::-1]} for job in jobs]


def job(line, name="a", beam=2, nbest=1, batch_tokens=1000):
    translator = SimpleNamespace(decoding=SimpleNamespace(max_extra=3, batch_tokens=batch_tokens))
    return Job(SimpleNamespace(name=name, translator=translator), line, len(line), beam, nbest, False, 100)


def run(scenario, **limits):
    """Run a scenario with a batcher whose work is noted; returns that work and the metrics."""
    work, metrics = Work(), Metrics()

    async def main():
        batcher = Batcher(Limits(**{"wait": 0.01, **limits}), metrics, work)
        batcher.start()
        try:
            await asyncio.wait_for(scenario(batcher, work), 10)
        finally:
            work.go.set()
            await batcher.stop()

    asyncio.run(main())
    return work, metrics


async def held_up(batcher, work):
    """A job that is being translated until ``work.go`` is set."""
    work.go.clear()
    first = job("first")
    batcher.submit([first])
    while not work.batches:
        await asyncio.sleep(0.001)
    return first


def test_what_arrives_together_is_translated_together():
    async def scenario(batcher, work):
        jobs = [job(f"line {i}") for i in range(5)]
        for each in jobs:
            batcher.submit([each])
            await asyncio.sleep(0)
        answers = await asyncio.gather(*(each.answer for each in jobs))
        assert [each["text"] for each in answers] == [f"line {i}"[::-1] for i in range(5)]

    work, metrics = run(scenario)
    assert work.batches == [[f"line {i}" for i in range(5)]]
    assert metrics.sentences.counts[()] == 5


def test_what_arrives_meanwhile_is_the_next_batch():
    async def scenario(batcher, work):
        first = await held_up(batcher, work)
        later = [job("second"), job("third")]
        batcher.submit(later)
        assert batcher.queued == 2
        work.go.set()
        await asyncio.gather(first.answer, *(each.answer for each in later))

    assert run(scenario)[0].batches == [["first"], ["second", "third"]]


def test_a_batch_stays_within_its_bound():
    """Of n subwords: 2 × (2n + 4) each; as many fit as there is room for the longest."""

    async def scenario(batcher, work):
        jobs = [job(line, batch_tokens=60) for line in ("abc", "de", "fghijklmnopqrstuvwxyz", "f", "abcd")]
        batcher.submit(jobs)
        await asyncio.gather(*(each.answer for each in jobs))

    assert run(scenario)[0].batches == [["abc", "de", "f"], ["fghijklmnopqrstuvwxyz"], ["abcd"]]


def test_a_bound_of_one_is_one_by_one():
    async def scenario(batcher, work):
        jobs = [job("a"), job("b")]
        batcher.submit(jobs)
        await asyncio.gather(*(each.answer for each in jobs))

    assert run(scenario, batch_tokens=1)[0].batches == [["a"], ["b"]]


def test_only_jobs_of_one_kind_are_translated_together():
    async def scenario(batcher, work):
        jobs = [
            job("1"),
            job("2", name="b"),
            job("3", beam=3),
            job("4", nbest=2),
            job("5"),
            job("6", name="b"),
        ]
        batcher.submit(jobs)
        await asyncio.gather(*(each.answer for each in jobs))

    assert run(scenario)[0].batches == [["1", "5"], ["2", "6"], ["3"], ["4"]]


def test_the_queue_is_bounded():
    async def scenario(batcher, work):
        first = await held_up(batcher, work)
        waiting = [job("a"), job("b"), job("c")]
        batcher.submit(waiting)
        with pytest.raises(OverloadedError) as refused:
            batcher.submit([job("d"), job("e")])
        assert 1 <= refused.value.retry_after <= 60
        batcher.submit([last := job("f")])
        work.go.set()
        await asyncio.gather(*(each.answer for each in (first, *waiting, last)))

    work, metrics = run(scenario, queue=4, sentences=4)
    assert work.batches == [["first"], ["a", "b", "c", "f"]]
    assert metrics.refused.counts[()] == 2


def test_dropped_jobs_are_not_translated_and_make_room():
    async def scenario(batcher, work):
        first = await held_up(batcher, work)
        gone, stays = [job("gone"), job("gone too")], job("stays")
        batcher.submit([*gone, stays])
        batcher.drop(gone)
        assert batcher.queued == 1
        work.go.set()
        await asyncio.gather(first.answer, stays.answer)
        assert all(each.answer.cancelled() for each in gone)

    work, metrics = run(scenario)
    assert work.batches == [["first"], ["stays"]]
    assert metrics.dropped.counts[()] == 2


def test_a_job_dropped_while_it_is_translated_harms_no_other():
    async def scenario(batcher, work):
        work.go.clear()
        gone, stays = job("gone"), job("stays")
        batcher.submit([gone, stays])
        while not work.batches:
            await asyncio.sleep(0.001)
        batcher.drop([gone])
        work.go.set()
        assert await stays.answer == {"text": "syats"}

    run(scenario)


def test_a_sentence_that_fails_fails_alone():
    async def scenario(batcher, work):
        work.broken = "bad"
        jobs = [job("good"), job("bad"), job("fine")]
        batcher.submit(jobs)
        good, bad, fine = await asyncio.gather(*(each.answer for each in jobs), return_exceptions=True)
        assert (good, fine) == ({"text": "doog"}, {"text": "enif"})
        assert isinstance(bad, RuntimeError)

    run(scenario)


def test_a_full_request_must_fit_the_queue():
    with pytest.raises(ValueError, match=r"queue \(10\) must be at least sentences \(64\)"):
        Limits(queue=10)
