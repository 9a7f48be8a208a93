"""Training on the CPU beside peers: target subwords a second, milliseconds a step and peak memory.

    python benchmarks/train_cpu.py [--size small base] [--rounds 9] [--tokens 4096]
                                   [--source FILE --target FILE]

Equal sizes, batches and settings (see ``train_candidates.py``), 2 threads, float32. Each candidate lives
in a process of its own, so that its peak memory is its own; in every round all of them take the same
batch, one after another, twice: a first time to get their memory back, which they give up between rounds
so that all fit on the machine, and a second time by the clock. Medians over the rounds are printed: of the
clock, and of the processor time of all threads, which says more where the machine has other work. Threads
sleep while they wait for one another (``OMP_WAIT_POLICY=passive``). The first step, not timed, has the
largest batch of the corpus. A peer that is not installed (``benchmarks/requirements.txt``, which says how) is
named and left out.

Then the whole loop, ``qknorm.training.train`` with its data, progress and bookkeeping: how much of its
time is the bare step, how much waiting for data, and how full its batches are.

The text is made up with lengths like en-vi's, unless files are given.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from train_candidates import CANDIDATES, SIZES, Setting, installed

from qknorm.config import DataSettings, Recipe, TrainingSettings
from qknorm.config.settings import SubwordSettings
from qknorm.data.batches import Batch, Batches
from qknorm.model import ModelSettings
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training import prepare, train, trainer
from qknorm.training.step import Step

VOCABULARY, WORDS, PAIRS, DEV = 8400, 3500, 20_000, 16
LETTERS = ("abcdefghijklmnopqrstuvwxyz", "абвгдежзийклмнопрстуфхцчшщъыьэюя")


def make_text(folder: Path) -> tuple[Path, Path]:
    """Two files of made-up words drawn by Zipf's law; lengths log-normal, about 25 subwords on average."""
    rng = np.random.default_rng(1)
    lengths = rng.lognormal(2.88, 0.57, PAIRS)
    files = folder / "source", folder / "target"
    for file, letters, swing in zip(files, LETTERS, (0.0, 0.2), strict=True):
        words = np.array(
            ["".join(rng.choice(list(letters), n)) for n in 2 + rng.poisson(3, WORDS)], dtype=object
        )
        bounds = np.cumsum(1 / np.arange(1, WORDS + 1))
        sizes = np.clip(np.rint(lengths * rng.lognormal(0, swing, PAIRS)), 1, 150).astype(int)
        drawn = words[np.searchsorted(bounds, rng.random(sizes.sum()) * bounds[-1])]
        with file.open("w", encoding="utf-8", newline="\n") as out:
            for sentence in np.split(drawn, np.cumsum(sizes)[:-1]):
                out.write(" ".join(sentence) + "\n")
    return files


def make_recipe(source: Path, target: Path, tokens: int, size: str, steps: int) -> Recipe:
    """A run of so many updates, scored by dev perplexity alone."""
    layers, width, inner, heads = SIZES[size]
    return Recipe(
        data=DataSettings(train_source=source, train_target=target, dev_size=DEV),
        subwords=SubwordSettings(kind="words"),
        model=ModelSettings(
            d_model=width, d_ff=inner, heads=heads, encoder_layers=layers, decoder_layers=layers
        ),
        training=TrainingSettings(
            batch_tokens=tokens, epoch_batches=steps, max_steps=steps, validate_bleu=False
        ),
    )


def give_memory_back() -> None:
    """Return freed memory to the system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def serve(
    name: str, size: str, threads: int, vocabulary: int, batches: list[Batch], connection: Connection
) -> None:
    """Take the batch whose number the parent sends; answer seconds, processor seconds, peak MiB so far."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    try:
        update = CANDIDATES[name].prepare(Setting(SIZES[size], vocabulary)).update
        update(batches[0])
    except Exception as failure:
        connection.send(f"{type(failure).__name__}: {failure}")
        return
    give_memory_back()
    connection.send(None)
    while (number := connection.recv()) is not None:
        update(batches[number])
        start, busy = time.perf_counter(), time.process_time()
        update(batches[number])
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        give_memory_back()
        connection.send((seconds, busy, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def compare(size: str, names: Sequence[str], threads: int, vocabulary: int, batches: list[Batch]) -> None:
    """Print the table of one size; ``batches[0]`` is for the first step, each other one is a round."""
    context = multiprocessing.get_context("spawn")
    workers: dict[str, tuple[Connection, multiprocessing.process.BaseProcess]] = {}
    for name in names:
        here, there = context.Pipe()
        process = context.Process(
            target=serve, args=(name, size, threads, vocabulary, batches, there), daemon=True
        )
        process.start()
        if failure := here.recv():
            print(f"{name}: left out, {failure}")
            continue
        workers[name] = here, process
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    busy: dict[str, list[float]] = {name: [] for name in workers}
    peak = dict.fromkeys(workers, 0.0)
    order = list(workers)
    for number in range(1, len(batches)):
        for name in order:
            connection = workers[name][0]
            connection.send(number)
            taken, worked, peak[name] = connection.recv()
            seconds[name].append(taken)
            busy[name].append(worked)
        order = order[1:] + order[:1]
    for connection, worker in workers.values():
        connection.send(None)
        worker.join()

    tokens = [batch.target_tokens for batch in batches[1:]]
    mean = statistics.mean(tokens)
    print(f"\n{size}: {SIZES[size]}, vocabulary {vocabulary}, {mean:.0f} target subwords a batch")
    head = ("tokens/s", "slowest-fastest", "ms/step", "time / ours", "CPU ms", "CPU / ours", "peak MiB")
    print(f"{'':22}" + "".join(f"{title:>{len(title) + 3}}" for title in head))
    first = next(iter(workers))
    for name, times in seconds.items():
        rates = sorted(n / s for n, s in zip(tokens, times, strict=True))
        cells = (
            f"{statistics.median(rates):.0f}",
            f"{rates[0]:.0f}-{rates[-1]:.0f}",
            f"{1000 * statistics.median(times):.0f}",
            f"{median_ratio(times, seconds[first]):.2f}",
            f"{1000 * statistics.median(busy[name]):.0f}",
            f"{median_ratio(busy[name], busy[first]):.2f}",
            f"{peak[name]:.0f}",
        )
        print(f"{name:22}" + "".join(f"{c:>{len(t) + 3}}" for c, t in zip(cells, head, strict=True)))


def median_ratio(values: list[float], others: list[float]) -> float:
    """The median over the rounds of how many times the other's value this is."""
    return statistics.median(a / b for a, b in zip(values, others, strict=True))


class TimedStep(Step):
    """The step of a training, noting when its updates begin and end."""

    times: list[tuple[float, float]] = []  # noqa: RUF012  (there is one training)

    def update(self, batches: Sequence[Batch], rate: float, step: int) -> None:
        begun = time.perf_counter()
        super().update(batches, rate, step)
        self.times.append((begun, time.perf_counter()))


def measure_loop(recipe: Recipe, folder: Path, threads: int, connection: Connection) -> None:
    """Train, and answer what the history says of the epoch beside what the step alone took of it."""
    torch.set_num_threads(threads)
    setattr(trainer, "Step", TimedStep)  # noqa: B010
    run = folder / "run"
    train(recipe, run, device="cpu", progress=Progress(quiet=True), cache=folder / "cache")
    times = TimedStep.times[1:]  # the first is slow everywhere
    whole = times[-1][1] - TimedStep.times[0][1]
    inside = sum(end - begun for begun, end in times)
    connection.send({"updates": len(times), "whole": whole, "inside": inside, **Run(run).history()[-1]})


def report_loop(recipe: Recipe, folder: Path, threads: int, batches: Batches) -> None:
    """Print how close the training loop comes to its bare step."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=measure_loop, args=(recipe, folder, threads, there))
    process.start()
    there.close()
    found: dict[str, Any] = here.recv()
    process.join()
    full = batches.fullness()
    print(
        f"\nWhole loop, qknorm small, {found['updates']} updates: {found['tokens_per_second']:.0f} target "
        f"tokens/s, {1000 * found['whole'] / found['updates']:.0f} ms an update, of which the bare step "
        f"{1000 * found['inside'] / found['updates']:.0f} ms; {found['inside'] / found['whole']:.2%} of the "
        f"bare step's throughput; waiting for data {found['waiting_share']:.2%}.\n"
        f"Batches: {full.budget:.1%} full by the longer side; source {full.source:.1%}, target "
        f"{full.target:.1%}, both {full.both:.1%}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="train on the lengths and words of this tokenised file …")
    parser.add_argument("--target", type=Path, help="… and this one")
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--tokens", type=int, default=4096, help="budget of a batch")
    parser.add_argument("--rounds", type=int, default=9, help="batches that each candidate is timed on")
    parser.add_argument("--updates", type=int, default=30, help="updates of the whole loop; 0: leave it out")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if (options.source is None) != (options.target is None):
        parser.error("give both --source and --target, or neither")
    os.environ |= {"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "passive"}

    print(f"torch {torch.__version__}", end="; ")
    names = installed(CANDIDATES)
    print(f"{options.threads} threads, float32, budget {options.tokens}, medians of {options.rounds} rounds")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, target = (options.source, options.target) if options.source else make_text(folder)
        recipe = make_recipe(source.resolve(), target.resolve(), options.tokens, "small", options.updates + 1)
        prepared = prepare(recipe, folder / "split", Progress(quiet=True), cache=folder / "cache")
        batches = Batches(prepared.encoded["train"], options.tokens, seed=1)
        vocabulary = max(VOCABULARY, prepared.subwords.size)
        facts = prepared.encoded["train"].facts
        print(
            f"{facts.examples} pairs, {facts.source_subwords / facts.examples:.1f} and "
            f"{facts.target_subwords / facts.examples:.1f} subwords a sentence"
        )
        chosen = [batches.largest(), *map(batches.batch, batches.pass_order(0)[: options.rounds].tolist())]
        for size in options.size:
            compare(size, names, options.threads, vocabulary, chosen)
        if options.updates:
            report_loop(recipe, folder, options.threads, batches)


if __name__ == "__main__":
    main()
