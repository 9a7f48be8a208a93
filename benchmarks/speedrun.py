"""A recipe against the clock: trained in a new process, from reading text to the scored test set.

    python benchmarks/speedrun.py recipes/fast/en-vi.yaml [--set KEY=VALUE …] [--seconds 600] [--keep FOLDER]

Prints what ``qknorm train`` does, then the row and the curve that ``results/speedrun.md`` has of a run, and
what its time went into. A run that outlasts --seconds is stopped, and says what it had come to. --keep copies
recipe, history, manifest, translations and scores, not the weights, into a new folder.
"""

from __future__ import annotations

import argparse
import math
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from qknorm.paper.records import copy_run
from qknorm.run import Run
from qknorm.scoring.metrics import MAIN

TO_STOP = 60.0
"""Seconds that a run has to save what it has and stop, before it is killed."""


def timed(command: list[str], limit: float) -> tuple[float, bool]:
    """The seconds that a command took, and whether it ended by itself and well."""
    begun = time.monotonic()
    running = subprocess.Popen(command)
    try:
        code = running.wait(limit if math.isfinite(limit) else None)
        return time.monotonic() - begun, code == 0
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        stop([running])
        return time.monotonic() - begun, False


def stop(running: list[subprocess.Popen[bytes]]) -> None:
    """Ask all to stop, together, and end those that do not."""
    for process in running:
        process.send_signal(signal.SIGINT)
    until = time.monotonic() + TO_STOP
    for process in running:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def row_of(words: list[str], run: Run, history: list[dict[str, Any]], seconds: float, whole: bool) -> str:
    """The run in one line."""
    best = max(history, key=lambda row: row["dev_bleu"] or -math.inf)
    ms = 1000 * sum(row["seconds"] for row in history) / history[-1]["step"]
    scores = run.scores() if whole else None
    test = (scores or {}).get("test")
    shown = "not scored" if test is None else f"**{test[MAIN[test['kind']]]:.2f}**"
    updates = f"{history[-1]['step']:,}"
    cut_off = ", everything included" if whole else ", cut off"
    bleu = "–" if best["dev_bleu"] is None else f"{best['dev_bleu']:.2f} (update {best['step']:,})"
    cells = [f"`qknorm train {shlex.join(words)}`", str(run.recipe().training.seed), updates, f"{ms:.2f}"]
    head = ["recipe", "seed", "updates", "ms a step", "minutes", "dev BLEU, best", "test BLEU"]
    return table(head, [[*cells, f"{seconds / 60:.1f}{cut_off}", bleu, shown]])


def curve_of(history: list[dict[str, Any]]) -> str:
    """The run, epoch by epoch."""
    lines = {
        "dev BLEU": ["–" if row["dev_bleu"] is None else f"{row['dev_bleu']:.2f}" for row in history],
        "dev perplexity": [f"{row['dev_perplexity']:.2f}" for row in history],
        "train perplexity (with dropout)": [f"{row['train_perplexity']:.2f}" for row in history],
        "seconds since the start": [f"{row['elapsed']:.0f}" for row in history],
    }
    return table(
        ["update", *(f"{row['step']:,}" for row in history)],
        [[name, *cells] for name, cells in lines.items()],
    )


def parts_of(history: list[dict[str, Any]], seconds: float) -> str:
    """What the time went into; validations are with all else that ends an epoch."""
    elapsed = [row["elapsed"] for row in history]
    between = [
        now - before - row["seconds"]
        for before, now, row in zip(elapsed, elapsed[1:], history[1:], strict=False)
    ]
    told = [
        f"{sum(row['seconds'] for row in history):.0f} of updates",
        f"{elapsed[0] - history[0]['seconds']:.0f} for the start and the first validation",
        *([f"{sum(between) / len(between):.1f} for each further one"] if between else []),
        f"{seconds - elapsed[-1]:.0f} at the end",
    ]
    return f"{seconds:.0f} seconds: " + ", ".join(told) + "."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as `qknorm train` has it"
    )
    parser.add_argument("--run", type=Path, help="the run folder; not given: one that is removed")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy what is kept of a run there")
    args = parser.parse_args()
    if args.keep and args.keep.exists():
        parser.error(f"{args.keep} is there already; name another folder for --keep, or remove it first")
    words = [args.recipe] + [word for value in args.set for word in ("--set", value)]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(args.run or Path(folder) / "run")
        command = [sys.executable, "-m", "qknorm", "train", *words, "--run", str(run.path)]
        seconds, whole = timed(command, args.seconds)
        history = run.history() if run.exists else []
        if not history:
            raise SystemExit(f"No epoch was finished in {seconds:.0f} seconds.")
        print(f"\n{row_of(words, run, history, seconds, whole)}\n\n{curve_of(history)}\n")
        print(parts_of(history, seconds), flush=True)
        if args.keep:
            recipe = run.recipe()
            copy_run(run, args.keep, recipe, recipe.data.corpus or recipe.name)


if __name__ == "__main__":
    main()
