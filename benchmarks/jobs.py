"""Several trainings on one GPU at a time: updates a second of all together, beside one alone.

    python benchmarks/jobs.py [--jobs 1 2 4] [--tokens 4096] [--mps] [--seconds 5] [--json FILE]
    python benchmarks/jobs.py --device cpu --size tiny --jobs 1 2 --seconds 0.2      # to try it

Each training is a process of its own, as ``qknorm reproduce --jobs`` has them, and takes the step that
``qknorm train`` takes, on batches of real sentence lengths. Processes on one GPU take turns on it; with --mps
they are measured under NVIDIA's multi-process service too, which lets their kernels run side by side. All
are started and warmed up once; then the first, the first two, ... work for some seconds together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from train_candidates import SIZES, Setting, Size, captured
from train_work import corpus_of, made_up_lengths

from qknorm.data.batches import MixedBatches

TINY = Size(1, 32, 64, 2)
VOCABULARY, PAIRS = 8400, 133_000


def work(args: argparse.Namespace) -> None:
    """A training: for every number of seconds on standard input, updates made and the seconds they took."""
    if args.device.type == "cpu":
        torch.set_num_threads(1)
    size, tiny = SIZES.get(args.size, TINY), args.size == "tiny"
    corpus = corpus_of(made_up_lengths(2000 if tiny else PAIRS), 100 if tiny else VOCABULARY)
    batches = MixedBatches(corpus, args.worker, seed=1, pass_number=0)
    setting = Setting(size, 100 if tiny else VOCABULARY, args.device, bfloat16=args.device.type == "cuda")
    learner = captured(setting, batches)
    some = [batches.batch(number) for number in batches.pass_order(0)[: 2 if tiny else 50].tolist()]
    for batch in some:
        learner.update(batch)
    learner.loss()
    print("ready", flush=True)
    for line in sys.stdin:
        begun, done = time.perf_counter(), 0
        while time.perf_counter() - begun < float(line):
            learner.update(some[done % len(some)])
            done += 1
        learner.loss()
        print(done, time.perf_counter() - begun, flush=True)


def started(tokens: int, args: argparse.Namespace, stack: ExitStack) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        __file__,
        f"--worker={tokens}",
        f"--device={args.device}",
        f"--size={args.size}",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a training ended with exit code {process.wait()}")
    return line


@contextmanager
def multi_process_service() -> Iterator[None]:
    """NVIDIA's service for the processes started meanwhile, with folders of its own; ended afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False)
            del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]


def measure(way: str, args: argparse.Namespace, alone: dict[int, float]) -> Iterator[dict[str, Any]]:
    """A row for each size of batches and number of trainings; ``alone`` has the first rate of each size."""
    with ExitStack() as stack:
        crowds = {n: [started(n, args, stack) for _ in range(max(args.jobs))] for n in args.tokens}
        for process in [p for crowd in crowds.values() for p in crowd]:
            while answer(process).strip() != "ready":
                pass
        for tokens, crowd in crowds.items():
            for jobs in args.jobs:
                for process in crowd[:jobs]:
                    print(args.seconds, file=process.stdin, flush=True)
                each = [tuple(map(float, answer(process).split())) for process in crowd[:jobs]]
                rates = [done / seconds for done, seconds in each]
                alone.setdefault(tokens, sum(rates) / jobs)
                yield {
                    "way": way,
                    "tokens": tokens,
                    "jobs": jobs,
                    "ms": 1000 * jobs / sum(rates),
                    "updates_per_s": sum(rates),
                    "against_one": sum(rates) / alone[tokens],
                }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096])
    parser.add_argument("--mps", action="store_true", help="measure under the multi-process service too")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda", 0))
    parser.add_argument("--size", choices=["tiny", *SIZES], default="base")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    rows: list[dict[str, Any]] = []
    alone: dict[int, float] = {}
    print("| | tokens | trainings | ms an update of each | updates/s, all | against one |")
    print("|---|---|---|---|---|---|")
    for way in ("in turns", "side by side")[: 1 + args.mps]:
        with multi_process_service() if way == "side by side" else ExitStack():
            for row in measure(way, args, alone):
                print("| {way} | {tokens} | {jobs} | {ms:.2f} | {updates_per_s:.0f} |".format(**row), end=" ")
                print("{against_one:.2f}x |".format(**row), flush=True)
                rows.append(row)
                if args.json:
                    args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
