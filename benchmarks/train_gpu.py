"""Training on a GPU beside peers: time of a step, target subwords a second, share of peak, memory, start-up.

    python benchmarks/train_gpu.py [--tokens 4096 16384 65536] [--growth] [--profile] [--json FILE]
    python benchmarks/train_gpu.py --device cpu --size tiny --growth     # all of it in seconds, to try it

The candidates of ``train_candidates.py``, equal in size and settings, in bfloat16 (autocast; float32 on a
CPU), on the same batches: one of 128 sentences of 32 subwords a side where a budget of 4096 is asked for,
and of real sentence lengths for every budget of tokens. All live in this process and alternate in rounds of
many steps; before and after each round the device is waited for, and medians over the rounds are printed.
What is known is said and written to FILE as it comes, the first budget first: a line when a candidate is
ready, with its time in one round alone (which stands in the table where --seconds leave no more), then
tables. A run that is cut off leaves all that.

- share of peak: the arithmetic a step cannot do without (``train_work.step_flops``: no padding, no norms) by
  its time and the GPU's dense bfloat16 peak;
- peak: the most memory allocated from building the candidate to the end of its warm-up; held: what it keeps
  for itself between steps, the memory of a captured graph included;
- first start: from building the model to the end of its first step, in a new process with an empty compile
  cache; start: the same in this process, with the cache that the first start has filled;
- loss: of the last step, to see that each has learned (JoeyNMT's is less by the entropy of smoothed targets).

A candidate that fails says so in its row. A peer that is not installed (``benchmarks/requirements.txt``) is
named and left out.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from train_candidates import SIZES, Learner, Size, installed
from train_entries import CAPTURED, EAGER, Bench, Entry, Scale, enter, start, time_rounds
from train_work import mean_flops, square_batch

from qknorm.data.batches import Batch

USUAL = ("qknorm", "qknorm, eager", "torch.nn.Transformer", "x-transformers", "JoeyNMT")
PEAKS = {"NVIDIA H200": 989.0, "NVIDIA H100 80GB HBM3": 989.0}
"""Dense bfloat16 TFLOP/s by the name of the device, as the maker states them."""


FULL = Scale(
    tokens=(4096, 16384, 65536),
    growth_tokens=(1024, 2048, 4096, 8192, 16384, 32768, 65536),
    layers=(2, 4, 6, 8, 12),
    square=(128, 32),
    vocabulary=8400,
    pairs=133_000,
    steps=20,
    rounds=5,
)
TINY = Scale((128,), (64, 128), (1, 2), (4, 32), 100, 2000, steps=3, rounds=2)


def row_of(entry: Entry, work: str, steps: list[Batch], bench: Bench, size: Size) -> dict[str, Any]:
    """The figures of a candidate on some work."""
    row: dict[str, Any] = {"candidate": entry.name}
    if entry.learner is None:
        return row | {"failure": entry.failure}
    times = entry.times(work)
    ms = statistics.median(times)
    flops = mean_flops(size, bench.scale.vocabulary, steps)
    return row | {
        "ms": ms,
        "rounds_ms": times,
        "alone_ms": entry.alone[work],
        "target_tokens_per_s": statistics.mean(batch.target_tokens for batch in steps) * 1000 / ms,
        "tflops_per_s": flops / ms / 1e9,
        "share_of_peak": flops / ms / 1e9 / bench.args.peak if bench.args.peak else None,
        "peak_gib": entry.peak,
        "held_gib": entry.held,
        "first_start_s": entry.first_start,
        "start_s": entry.start,
        "loss": entry.loss,
    }


def cells_of(row: dict[str, Any], first_ms: float) -> list[str]:
    """What of a row is printed beside its name."""
    if "failure" in row:
        return [row["failure"], *[""] * (len(COLUMNS) - 1)]
    share, first = row["share_of_peak"], row["first_start_s"]
    return [
        f"{row['ms']:.2f}",
        f"{max(row['rounds_ms']):.2f}–{min(row['rounds_ms']):.2f}",
        f"{row['ms'] / first_ms:.2f}",
        f"{row['target_tokens_per_s']:,.0f}",
        f"{row['tflops_per_s']:.1f}",
        "–" if share is None else f"{share:.1%}",
        f"{row['peak_gib']:.2f}",
        f"{row['held_gib']:.2f}",
        "–" if first is None else f"{first:.1f}",
        f"{row['start_s']:.1f}",
        f"{row['loss']:.3f}",
    ]


COLUMNS = (
    *("ms a step", "slowest–fastest", "time / first", "target tokens/s", "TFLOP/s", "share of peak"),
    *("peak GiB", "held GiB", "first start s", "start s", "loss"),
)


def print_head(title: str, head: str) -> None:
    print(f"\n{title}\n\n| {head} | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|")


def print_row(name: str, row: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """One of these rows; times are compared with the first that has one."""
    first_ms = next((row["ms"] for row in rows if "ms" in row), math.nan)
    print(f"| {name} | " + " | ".join(cells_of(row, first_ms)) + " |")


def real_lengths(tokens: int) -> str:
    return f"{tokens} tokens, real lengths"


def compare(tokens: int, names: list[str], bench: Bench, profiles: bool) -> None:
    """All candidates at one budget: on the full batch where it is one, and on real lengths."""
    setting, steps = bench.setting(), bench.some(tokens)
    works = {real_lengths(tokens): steps}
    sentences, length = bench.scale.square
    if sentences * length == tokens:
        full = square_batch(sentences, length, bench.scale.vocabulary)
        works = {f"{sentences}x{length}": [full] * bench.args.steps} | works
    entries: list[Entry] = []

    def keep(*under_way: str) -> None:
        for work in under_way:
            rows = [row_of(entry, work, works[work], bench, setting.size) for entry in entries]
            bench.results["compared"][work] = rows
        bench.save()

    for name in names:
        entries.append(enter(name, bench, setting, tokens, works))
        keep(*works)
    for work, batches in works.items():
        time_rounds(entries, work, batches, bench, partial(keep, work))
        given = statistics.mean(batch.target_tokens for batch in batches)
        print_head(f"{work}: {given:.0f} target subwords a batch", "candidate")
        for row in (rows := bench.results["compared"][work]):
            print_row(row["candidate"], row, rows)
    first = entries[0]
    if profiles and first.learner is not None:
        bench.results["kernels"] = kernels(first.learner, steps, bench)
        print_kernels(first.name, tokens, bench.results["kernels"])
        bench.save()


def grow(bench: Bench) -> None:
    """Ours against layers at the first budget, and against tokens."""
    layers = bench.size.layers
    plans = {
        "layers": [(n, bench.args.tokens[0], n) for n in bench.args.layers],
        "tokens": [(tokens, tokens, layers) for tokens in bench.scale.growth_tokens],
    }
    for axis, plan in plans.items():
        rows: list[dict[str, Any]] = []
        bench.results["growth"][axis] = rows
        print_head(f"qknorm against {axis}, real lengths", axis)
        for value, tokens, depth in plan:
            rows.append({axis: value} | measure_ours(tokens, depth, bench))
            print_row(str(value), rows[-1], rows)
            bench.save()


def measure_ours(tokens: int, layers: int, bench: Bench) -> dict[str, Any]:
    """The figures of ours on real lengths; where the comparison has them, those."""
    work = real_lengths(tokens)
    for row in bench.results["compared"].get(work, []) if layers == bench.size.layers else []:
        if row["candidate"] == "qknorm" and "ms" in row:
            return dict(row)
    setting, works = bench.setting(layers), {work: bench.some(tokens)}
    entry = enter("qknorm", bench, setting, tokens, works, cold=False)
    time_rounds([entry], work, works[work], bench, lambda: None)
    row = row_of(entry, work, works[work], bench, setting.size)
    del entry
    bench.clear()
    return row


def kernels(learner: Learner, steps: list[Batch], bench: Bench) -> list[dict[str, Any]]:
    """What runs on the device (on a CPU: operators) in a step, and how long; longest first."""
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.CUDA if bench.on_gpu else ProfilerActivity.CPU
    with profile(activities=[kind]) as profiled:
        for batch in steps:
            learner.update(batch)
        bench.wait()
    key = "self_device_time_total" if bench.on_gpu else "self_cpu_time_total"
    found = [
        {"name": event.key, "us": getattr(event, key) / len(steps), "calls": event.count / len(steps)}
        for event in profiled.key_averages()
    ]
    return sorted(found, key=lambda row: -row["us"])[:30]


def print_kernels(name: str, tokens: int, rows: list[dict[str, Any]]) -> None:
    print(f"\nKernels of {name} at {tokens} tokens, a step\n\n| µs | calls | kernel |\n|---|---|---|")
    for row in rows:
        print(f"| {row['us']:.1f} | {row['calls']:.1f} | {row['name'][:100]} |")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--size", choices=(*SIZES, "tiny"), default="base")
    parser.add_argument("--tokens", type=int, nargs="+", help="budgets of a batch")
    parser.add_argument("--lengths", type=Path, help="file of two columns: source and target subwords")
    parser.add_argument("--candidates", nargs="+", choices=(*CAPTURED, *EAGER), default=list(USUAL))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int, help="steps a round")
    parser.add_argument("--growth", action="store_true", help="also ours against tokens and layers")
    parser.add_argument(
        "--layers", type=int, nargs="+", help="layers each of encoder and decoder in --growth"
    )
    parser.add_argument("--profile", action="store_true", help="also the kernels of the first candidate")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="start nothing new after this; say what is left out"
    )
    parser.add_argument(
        "--peak", type=float, help="the GPU's dense bfloat16 TFLOP/s, if it is not known here"
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --device cpu --size tiny tries the script without one")
    return args


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a run may be cut off
    args = parse()
    scale = TINY if args.size == "tiny" else FULL
    args.tokens, args.layers = args.tokens or list(scale.tokens), args.layers or list(scale.layers)
    args.steps, args.rounds = args.steps or scale.steps, args.rounds or scale.rounds
    on_gpu = args.device.type == "cuda"
    where = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU"
    args.peak = args.peak or PEAKS.get(where)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, scale, Path(folder))
        if args.start:
            print(start(args.start, bench, bench.setting(), args.tokens[0])[1])
            return
        print(f"torch {torch.__version__}", end="; ")
        if not (names := installed(args.candidates)):
            raise SystemExit("There is nothing to measure.")
        precision = "bfloat16" if on_gpu else "float32"
        peak = f"{args.peak:.0f} TFLOP/s" if args.peak else "not known (--peak says it)"
        source, target = (side.lengths.mean() for side in (bench.corpus.source, bench.corpus.target))
        print(
            f"{where}, {precision}, {bench.size}, vocabulary {scale.vocabulary}; medians of {args.rounds} "
            f"rounds of {args.steps} steps; dense bfloat16 peak: {peak}; {len(bench.corpus)} pairs "
            f"({args.lengths or 'made up'}), {source:.1f} and {target:.1f} subwords a sentence",
            flush=True,
        )
        bench.results = {
            "torch": torch.__version__,
            "device": where,
            "precision": precision,
            "peak_tflops_per_s": args.peak,
            "size": bench.size._asdict(),
            "vocabulary": scale.vocabulary,
            "pairs": len(bench.corpus),
            "mean_lengths": [float(source), float(target)],
            "rounds": args.rounds,
            "steps": args.steps,
            "compared": {},
            "growth": {},
        }
        if math.prod(scale.square) not in args.tokens:
            print(f"the full batch is left out: it needs --tokens {math.prod(scale.square)}")
        for place, tokens in enumerate(args.tokens):
            compare(tokens, names, bench, args.profile and place == 0)
            bench.clear()
        if args.growth:
            grow(bench)


if __name__ == "__main__":
    main()
