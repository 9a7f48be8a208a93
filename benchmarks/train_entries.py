"""Candidates of ``train_gpu.py`` started, warmed up and timed in turns, and what they are given."""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from train_candidates import CANDIDATES, SIZES, Learner, Setting, Size, captured, ours
from train_work import corpus_of, made_up_lengths, read_lengths

from qknorm.data.batches import Batch, Batches

CAPTURED: dict[str, dict[str, Any]] = {
    "qknorm": {},
    "qknorm, qk_norm=None": {"qk_norm": None},
}
EAGER = {"qknorm, eager": ours} | {n: c.prepare for n, c in CANDIDATES.items() if n not in CAPTURED}
TIME_IS_UP = "not run, --seconds are over"
GIB = 2**30


class Scale(NamedTuple):
    """How much is measured, where nothing else is asked for."""

    tokens: tuple[int, ...]
    growth_tokens: tuple[int, ...]
    layers: tuple[int, ...]
    square: tuple[int, int]
    """Sentences and subwords a side of the full batch."""
    vocabulary: int
    pairs: int
    steps: int
    rounds: int


@dataclass
class Entry:
    """A candidate at one budget, and what is known of it."""

    name: str
    learner: Learner | None = None
    first_start: float | None = None
    start: float | None = None
    peak: float = 0.0  # GiB
    held: float = 0.0
    alone: dict[str, float] = field(default_factory=dict)
    """Milliseconds a step of each work, in one round before the other candidates were there."""
    rounds: dict[str, list[float]] = field(default_factory=dict)
    """Those of the rounds in which candidates take turns."""
    loss: float | None = None
    failure: str | None = None

    def times(self, work: str) -> list[float]:
        """The rounds taken in turns; before there are any, the one taken alone."""
        return self.rounds.get(work) or [self.alone[work]]


@dataclass
class Bench:
    """What all measurements share."""

    args: argparse.Namespace
    scale: Scale
    caches: Path
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device: torch.device = self.args.device
        self.on_gpu = self.device.type == "cuda"
        self.size = SIZES.get(self.args.size, Size(1, 32, 64, 2))
        self.end: float = time.perf_counter() + self.args.seconds
        lengths = read_lengths(self.args.lengths) if self.args.lengths else made_up_lengths(self.scale.pairs)
        self.corpus = corpus_of(lengths, self.scale.vocabulary)
        self.batches = cache(lambda tokens: Batches(self.corpus, tokens, seed=1))

    def over(self) -> bool:
        return time.perf_counter() > self.end

    def setting(self, layers: int | None = None) -> Setting:
        size = self.size if layers is None else self.size._replace(layers=layers)
        return Setting(size, self.scale.vocabulary, self.device, bfloat16=self.on_gpu)

    def some(self, tokens: int) -> list[Batch]:
        """As many batches of this budget as a round has steps."""
        batches = self.batches(tokens)
        order = np.resize(batches.pass_order(0), self.args.steps)
        return [batches.batch(number) for number in order.tolist()]

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def clear(self) -> tuple[int, int]:
        """Give free memory back and forget its peak; what is allocated, and what is held."""
        gc.collect()
        if not self.on_gpu:
            return 0, 0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def use_cache(self, name: str, tokens: int) -> None:
        """Compiled code goes to this candidate's folder from now on, also that of processes started here."""
        folder = self.caches / f"{list(CAPTURED).index(name)}-{tokens}"
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}

    def save(self) -> None:
        """Write what is known by now, in place of what was; the file is always a whole one."""
        if self.args.json:
            part = self.args.json.with_name(self.args.json.name + ".part")
            part.write_text(json.dumps(self.results, indent=1) + "\n")
            part.replace(self.args.json)


def start(name: str, bench: Bench, setting: Setting, tokens: int) -> tuple[Learner, float]:
    """Build a candidate and take its first step; the seconds of both."""
    batches = bench.batches(tokens)
    largest = batches.largest()
    torch.manual_seed(0)
    if name in CAPTURED:
        torch.compiler.reset()  # shapes of before count towards the compiler's limit
    bench.wait()
    begun = time.perf_counter()
    if name in CAPTURED:
        learner = captured(setting, batches, **CAPTURED[name])
    else:
        learner = EAGER[name](setting)
    learner.update(largest)
    bench.wait()
    return learner, time.perf_counter() - begun


def first_start(name: str, bench: Bench, tokens: int) -> float:
    """The seconds of ``start`` in a new process; its cache must be empty."""
    args, script = bench.args, Path(__file__).with_name("train_gpu.py")
    asked = [sys.executable, str(script), "--start", name, "--tokens", str(tokens), "--size", args.size]
    asked += ["--device", str(bench.device), *(["--lengths", str(args.lengths)] if args.lengths else [])]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the first start failed: {(done.stderr.strip() or '?').splitlines()[-1]}")
    return float(done.stdout.splitlines()[-1])


def enter(
    name: str, bench: Bench, setting: Setting, tokens: int, works: dict[str, list[Batch]], cold: bool = True
) -> Entry:
    """A candidate started, warmed up, and timed in one round of each work; or why it is not."""
    entry = Entry(name)
    if bench.over():
        entry.failure = TIME_IS_UP
        return entry
    try:
        if name in CAPTURED:
            bench.use_cache(name, tokens)
            entry.first_start = first_start(name, bench, tokens) if cold else None
        allocated, reserved = bench.clear()
        entry.learner, entry.start = start(name, bench, setting, tokens)
        for batch in chain(*works.values()):
            entry.learner.update(batch)
        bench.wait()
        if bench.on_gpu:
            entry.peak = (torch.cuda.max_memory_allocated() - allocated) / GIB
        entry.held = (bench.clear()[1] - reserved) / GIB
        entry.alone = {work: time_round(entry.learner, steps, bench) for work, steps in works.items()}
        entry.loss = entry.learner.loss()
    except Exception as error:  # whatever a candidate may raise: the others go on
        fail(entry, error)
    say_entry(f"  {tokens} tokens, {setting.size.layers} layers, {name}", entry)
    return entry


def say_entry(title: str, entry: Entry) -> None:
    """A line about a candidate as soon as there is something to say; tables come later."""
    first = "" if entry.first_start is None else f" (first start {entry.first_start:.1f} s)"
    alone = ", ".join(f"{ms:.2f} ms a step of {work}" for work, ms in entry.alone.items())
    state = entry.failure or f"ready after {entry.start:.1f} s{first}; alone {alone}"
    print(f"{title}: {state}", file=sys.stderr, flush=True)


def fail(entry: Entry, error: Exception) -> None:
    entry.learner = None
    words = (str(error).strip() or "?").splitlines()[0][:160].replace("|", "/")
    entry.failure = f"{type(error).__name__}: {words}"


def time_round(learner: Learner, steps: list[Batch], bench: Bench) -> float:
    """Milliseconds a step, the device waited for before and after all of them."""
    bench.wait()
    begun = time.perf_counter()
    for batch in steps:
        learner.update(batch)
    bench.wait()
    return (time.perf_counter() - begun) * 1000 / len(steps)


def time_rounds(
    entries: list[Entry], work: str, steps: list[Batch], bench: Bench, keep: Callable[[], None]
) -> None:
    """Rounds in which candidates take turns, as many as there is time for; ``keep`` is called after each."""
    for _ in range(bench.args.rounds):
        if bench.over():
            return
        for entry in entries:
            if entry.learner is None:
                continue
            try:
                entry.rounds.setdefault(work, []).append(time_round(entry.learner, steps, bench))
                entry.loss = entry.learner.loss()
            except Exception as error:  # as in ``enter``
                fail(entry, error)
        keep()
