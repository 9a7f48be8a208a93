"""The server as a process: SIGTERM, clients that go away, many clients at once."""

import asyncio
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

pytest.importorskip("uvicorn", reason="needs the server's packages: pip install qknorm[serve]")

from qknorm.errors import UserError
from qknorm.serving import Limits, create_app
from qknorm.serving.batcher import Batcher
from qknorm.serving.server import bind
from qknorm.serving.work import translate_jobs
from support.command import Command, environment
from support.tiny import WORDS


def post(port: int, body: dict) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/translate", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def metric(port: int, name: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    return int(re.search(rf"^{name} (\d+)", connection.getresponse().read().decode(), re.M)[1])


@pytest.mark.slow
def test_a_server_answers_drops_and_ends(runs, models, tmp_path):
    """It answers many clients at once, each its own; drops what a client left; SIGTERM finishes the rest."""
    command = [sys.executable, "-m", "qknorm", "serve", runs[0], runs[1], "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        list(map(str, command)), cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        port = int(re.search(r"Serving qknorm, baseline at http://127\.0\.0\.1:(\d+)/", said)[1])
        with socket.socket() as attempt:
            assert attempt.connect_ex(("127.0.0.1", port)) == 0, "it said that it serves"
        deadline = time.monotonic() + 60

        lines = [f"{a} {b} {c}" for a in WORDS[:4] for b in WORDS[:3] for c in WORDS[:2]]
        expected = models[1].translator(lines)
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda line: post(port, {"text": line, "model": "baseline"}), lines))
        assert [(status, answer["sentences"][0]["text"]) for status, answer in answers] == [
            (200, text) for text in expected
        ]

        long = {"text": [" ".join(WORDS * 4)] * 64, "beam": 16}
        leaving = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        leaving.request("POST", "/translate", json.dumps(long), {"Content-Type": "application/json"})
        while not metric(port, "qknorm_queued_sentences"):
            assert time.monotonic() < deadline
        leaving.close()
        while metric(port, "qknorm_queued_sentences"):
            assert time.monotonic() < deadline
        assert metric(port, "qknorm_dropped_sentences_total") > 0

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(post, port, long)
            while not metric(port, "qknorm_queued_sentences"):
                assert not running.done()
            process.send_signal(signal.SIGTERM)
            status, answer = running.result(timeout=60)
        assert (status, len(answer["sentences"])) == (200, 64)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()


def test_the_address_may_be_taken_or_not_ours():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError, match="Cannot serve at 127.0.0.1 port .*; choose another"):
            bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="is not an address|Cannot serve at"):
        bind("192.0.2.1", 0)


def test_mistakes_on_the_command_line_get_a_sentence(tmp_path, monkeypatch, capsys):
    command = Command(tmp_path, monkeypatch, capsys)
    done = command("serve", "nowhere", "--port", "0")
    assert done.code == 2
    assert "nowhere is not a run folder" in done.err
    done = command("serve", "nowhere", "--port", "0", "--api-key", "")
    assert done.code == 2
    assert "printable ASCII" in done.err


class Held:
    """The work of the batcher, held up until it is let go."""

    def __init__(self):
        self.lines = []
        self.go = threading.Event()

    def __call__(self, jobs):
        self.lines.append([job.line for job in jobs])
        assert self.go.wait(10)
        return translate_jobs(jobs)


@pytest.fixture
def held(monkeypatch):
    work = Held()
    monkeypatch.setattr("qknorm.serving.app.Batcher", partial(Batcher, work=work))
    yield work
    work.go.set()


async def ask(app, body, gone=None):
    """One request to the application; the client goes away when ``gone`` is set. Its status and headers."""
    sent = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    told = {}

    async def receive():
        if sent:
            return sent.pop()
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.start":
            told.update(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/translate", "raw_path": b"/translate"}
    scope |= {
        "headers": headers,
        "query_string": b"",
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
    }
    await app(scope, receive, send)
    return told["status"], dict(told["headers"])


async def until(true):
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.002)


def test_a_client_that_goes_away_is_not_worked_for(models, held):
    async def main():
        app = create_app(models)
        async with app.router.lifespan_context(app):
            first = asyncio.create_task(ask(app, {"text": "gato"}))
            await until(lambda: held.lines)
            gone = asyncio.Event()
            leaving = asyncio.create_task(ask(app, {"text": ["casa", "ela"]}, gone))
            staying = asyncio.create_task(ask(app, {"text": "home"}))
            await asyncio.sleep(0.05)
            gone.set()
            assert (await leaving)[0] == 499
            held.go.set()
            assert (await first)[0] == (await staying)[0] == 200

    asyncio.run(main())
    assert held.lines == [["gato"], ["home"]]


def test_the_requests_at_a_time_are_bounded(models, held):
    async def main():
        app = create_app(models, Limits(requests=2))
        async with app.router.lifespan_context(app):
            two = [asyncio.create_task(ask(app, {"text": "gato"})) for _ in range(2)]
            await until(lambda: held.lines)
            status, headers = await ask(app, {"text": "casa"})
            assert (status, headers[b"retry-after"]) == (503, b"1")
            held.go.set()
            assert [(await each)[0] for each in two] == [200, 200]
            assert (await ask(app, {"text": "casa"}))[0] == 200

    asyncio.run(main())


def test_overload_is_refused_with_a_time_to_come_again(models, held):
    async def main():
        app = create_app(models, Limits(sentences=2, queue=3))
        async with app.router.lifespan_context(app):
            first = asyncio.create_task(ask(app, {"text": "gato"}))
            await until(lambda: held.lines)
            second = asyncio.create_task(ask(app, {"text": ["casa", "ela"]}))
            await asyncio.sleep(0.05)
            status, headers = await ask(app, {"text": ["home", "ano"]})
            assert status == 503
            assert int(headers[b"retry-after"]) >= 1
            held.go.set()
            assert (await first)[0] == (await second)[0] == 200
            assert (await ask(app, {"text": ["home", "ano"]}))[0] == 200

    asyncio.run(main())
