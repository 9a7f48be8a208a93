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
from itertools import pairwise
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


History = list[dict[str, Any]]
"""The rows of one model, one an epoch."""


def row_of(words: list[str], run: Run, histories: list[History], seconds: float, whole: bool) -> str:
    """The run in one line; of several models that translate together, scores are those of all together."""
    steps = [history[-1]["step"] for history in histories]
    ms = 1000 * sum(row["seconds"] for history in histories for row in history) / sum(steps)
    scores = (run.scores() if whole else None) or {}
    test = scores.get("test")
    shown = "not scored" if test is None else f"**{test[MAIN[test['kind']]]:.2f}**"
    updates = " + ".join(f"{step:,}" for step in steps)
    cut_off = ", everything included" if whole else ", cut off"
    bleu = " and ".join(_best(history) for history in histories)
    if "dev" in scores and len(histories) > 1:
        bleu = f"{scores['dev'][MAIN[scores['dev']['kind']]]:.2f} together; {bleu}"
    first = run.recipe().training.seed
    seeds = ", ".join(str(first + number) for number in range(len(histories)))
    cells = [f"`qknorm train {shlex.join(words)}`", seeds, updates, f"{ms:.2f}"]
    head = ["recipe", "seed", "updates", "ms a step", "minutes", "dev BLEU, best", "test BLEU"]
    return table(head, [[*cells, f"{seconds / 60:.1f}{cut_off}", bleu, shown]])


def _best(history: History) -> str:
    best = max(history, key=lambda row: row["dev_bleu"] or -math.inf)
    return "–" if best["dev_bleu"] is None else f"{best['dev_bleu']:.2f} (update {best['step']:,})"


def curve_of(history: History) -> str:
    """One model, epoch by epoch."""
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


def parts_of(histories: list[History], seconds: float) -> str:
    """What the time went into; validations are with all else that ends an epoch."""
    between = [
        now["elapsed"] - before["elapsed"] - now["seconds"]
        for history in histories
        for before, now in pairwise(history)
    ]
    starts = [history[0]["elapsed"] - history[0]["seconds"] for history in histories]
    told = [
        f"{sum(row['seconds'] for history in histories for row in history):.0f} of updates",
        f"{' and '.join(f'{start:.0f}' for start in starts)} for the start and the first validation",
        *([f"{sum(between) / len(between):.1f} for each further one"] if between else []),
        f"{seconds - sum(history[-1]['elapsed'] for history in histories):.0f} at the end",
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
        members = run.members() if run.exists else []
        histories = [history for member in members if (history := member.history())]
        if not histories:
            raise SystemExit(f"No epoch was finished in {seconds:.0f} seconds.")
        print(f"\n{row_of(words, run, histories, seconds, whole)}\n")
        print("\n\n".join(curve_of(history) for history in histories))
        print(f"\n{parts_of(histories, seconds)}", flush=True)
        if args.keep:
            recipe = run.recipe()
            copy_run(run, args.keep, recipe, recipe.data.corpus or recipe.name)


if __name__ == "__main__":
    main()
