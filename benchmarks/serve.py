"""The server under load, on this machine alone: batched beside unbatched, and every answer checked.

Two servers of the same model stand side by side on loopback, one that translates together what arrives
together and one that translates one sentence at a time. They take turns: so many clients, each of which
sends a sentence, waits for its translation and sends the next. Every answer is compared with what the
translator says of that sentence without a server: none may be lost, or be another client's.

    python benchmarks/serve.py [--run RUN --source FILE] [--clients 1 8 64] [--requests 96] [--rounds 3]

Without a run the model has random weights, 3+3 layers of width 256.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import random
import re
import socket
import statistics
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SAME = 1e-3
"""Scores closer than this are the same: batches differ in rounding."""


@dataclass
class Load:
    """What was measured with so many clients."""

    rates: list[float] = field(default_factory=list)
    """Requests a second, round by round."""
    seconds: list[float] = field(default_factory=list)
    """Of each request."""
    batches: float = 0.0
    """Sentences translated together, on average."""

    def row(self, clients: int, name: str) -> str:
        p50, p95, p99 = (1000 * quantile(self.seconds, q) for q in (0.5, 0.95, 0.99))
        rate = statistics.median(self.rates)
        return f"| {clients} | {name} | {rate:.1f} | {p50:.0f} | {p95:.0f} | {p99:.0f} | {self.batches:.1f} |"


@dataclass
class Checked:
    """How answers compare with what was expected."""

    asked: int = 0
    equal: int = 0
    rounding: int = 0
    """Another translation of the same score: a tie that rounding decided."""
    wrong: list[str] = field(default_factory=list)


def quantile(values: list[float], q: float) -> float:
    """The smallest value that at least this share of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(q * 100) * len(ordered) // 100) - 1)]


def sentences(source: Path | None, count: int) -> list[str]:
    """Different sentences: the first of a file, or random words of 3 to 30 a sentence."""
    if source is not None:
        with source.open(encoding="utf-8") as lines:
            found = dict.fromkeys(line.strip()[:500] for line in lines if line.strip())
        return list(itertools.islice(found, count))
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8))) for _ in range(400)]
    made = (" ".join(rng.choices(words, k=rng.randint(3, 30))) for _ in itertools.count())
    return list(itertools.islice(dict.fromkeys(itertools.islice(made, 2 * count)), count))


def load(run: Path | None) -> Any:
    """The run as it is served, or a model with random weights that always come out the same."""
    from qknorm.serving import Served, load_served

    if run is not None:
        return load_served([run], "cpu")[0]
    import torch

    from qknorm.config import DecodingSettings
    from qknorm.data import Subwords
    from qknorm.model import ModelSettings, Transformer
    from qknorm.serving.schema import Model
    from qknorm.translation.translator import Translator

    text = sentences(None, 500)
    subwords = Subwords.learn(text, text, kind="words", operations=2000)
    settings = ModelSettings(d_model=256, d_ff=1024, heads=4, encoder_layers=3, decoder_layers=3)
    torch.manual_seed(0)
    model = Transformer(subwords.size, settings, torch.from_numpy(subwords.target_mask)).eval()
    about = Model(
        name="random",
        source=None,
        target=None,
        text="words",
        encoder_layers=3,
        decoder_layers=3,
        heads=4,
        width=256,
        qk_norm=settings.qk_norm,
        parameters=sum(each.numel() for each in model.parameters()),
        beam=4,
        dev_bleu=None,
    )
    return Served(Translator([model], subwords, DecodingSettings(max_extra=5)), about)


def serve(run: Path | None, threads: int, batch_tokens: int | None, parent: Connection) -> None:
    """A server on a free port of loopback, which is told to the parent; it ends with its parent."""
    import torch
    import uvicorn

    from qknorm.serving import Limits, create_app

    torch.set_num_threads(threads)
    app = create_app([load(run)], Limits(batch_tokens=batch_tokens))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        parent.send(bound.getsockname()[1])
        config = uvicorn.Config(app, log_level="warning", http="h11", ws="none", access_log=False)
        uvicorn.Server(config).run(sockets=[bound])


class Client:
    """One connection that is kept, one request at a time."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", answer, re.I)[1])  # type: ignore[index]
        return int(answer.split()[1]), await self.reader.readexactly(length)


async def put_under_load(
    port: int, clients: int, work: list[str], expected: list[tuple[str, float]], load: Load, checked: Checked
) -> None:
    """So many clients send all of the work between them; notes the time of each request."""
    waiting = iter(range(len(work)))

    async def client() -> None:
        async with Client(port) as connection:
            for number in waiting:
                began = time.perf_counter()
                checked.asked += 1
                try:
                    status, body = await connection.ask(
                        "POST", "/translate", json.dumps({"text": work[number]}).encode()
                    )
                except (OSError, asyncio.IncompleteReadError) as error:
                    checked.wrong.append(f"request {number}: lost, {error!r}")
                    return
                load.seconds.append(time.perf_counter() - began)
                check(number, status, body, expected[number], checked)

    before = await batches(port)
    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    load.rates.append(len(work) / (time.perf_counter() - began))
    after = await batches(port)
    load.batches = (after[0] - before[0]) / (after[1] - before[1])


def check(number: int, status: int, body: bytes, expected: tuple[str, float], checked: Checked) -> None:
    if status != 200:
        checked.wrong.append(f"request {number}: status {status}")
        return
    (sentence,) = json.loads(body)["sentences"]
    text, score = sentence["text"], sentence["translations"][0]["score"]
    if abs(score - expected[1]) > SAME:
        wanted = f"{expected[0]!r} ({expected[1]})"
        checked.wrong.append(f"request {number}: {text!r} ({score}) instead of {wanted}")
    elif text == expected[0]:
        checked.equal += 1
    else:
        checked.rounding += 1


async def batches(port: int) -> tuple[float, float]:
    """Sentences translated so far, and batches."""
    async with Client(port) as connection:
        _, body = await connection.ask("GET", "/metrics")
    found = dict(re.findall(r"^qknorm_batch_sentences_(sum|count) (\S+)$", body.decode(), re.M))
    return float(found["sum"]), float(found["count"])


async def measure(
    ports: dict[str, int], options: argparse.Namespace, work: list[str], expected: list[tuple[str, float]]
) -> Checked:
    """Print a row for each number of clients and each server; what was found of the answers."""
    checked = Checked()
    for port in ports.values():
        await put_under_load(port, 2, work[:8], expected, Load(), checked)
    print("| clients | | requests/s | p50 ms | p95 ms | p99 ms | sentences a batch |")
    print("|---|---|---|---|---|---|---|")
    for clients in options.clients:
        loads = {name: Load() for name in ports}
        for _ in range(options.rounds):
            for name, port in ports.items():
                await put_under_load(port, clients, work, expected, loads[name], checked)
        for name, found in loads.items():
            print(found.row(clients, name), flush=True)
    return checked


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, help="run folder; without it, random weights")
    parser.add_argument("--source", type=Path, help="text to translate, for a run of your own")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--requests", type=int, default=96, help="in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each server")
    options = parser.parse_args()
    if (options.run is None) != (options.source is None):
        parser.error("--run and --source go together")

    import torch

    torch.set_num_threads(options.threads)
    work = sentences(options.source, options.requests)
    translator = load(options.run).translator
    expected = [(found[0].text, found[0].score) for found in translator.stream(work)]
    different = len({(text, round(score, 3)) for text, score in expected})
    print(f"{len(work)} sentences, {different} different answers; {options.threads} threads a server\n")

    context = multiprocessing.get_context("spawn")
    servers, ports = [], {}
    try:
        for name, bound in (("batched", None), ("one by one", 1)):
            mine, theirs = context.Pipe()
            server = context.Process(
                target=serve, args=(options.run, options.threads, bound, theirs), daemon=True
            )
            server.start()
            servers.append(server)
            ports[name] = mine.recv()
            wait_for(ports[name])
        checked = asyncio.run(measure(ports, options, work, expected))
    finally:
        for server in servers:
            server.terminate()
            server.join(30)
    print(
        f"\n{checked.asked} requests: {checked.equal} answered as expected, {checked.rounding} with ties "
        f"that rounding decided, {len(checked.wrong)} wrong or lost"
    )
    for each in checked.wrong[:10]:
        print(each, file=sys.stderr)
    return 1 if checked.wrong else 0


def wait_for(port: int) -> None:
    """Until the server listens."""
    deadline = time.monotonic() + 60
    while True:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise SystemExit("error: the server did not come up within a minute.")
        time.sleep(0.05)


if __name__ == "__main__":
    raise SystemExit(main())
