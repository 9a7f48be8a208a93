"""Variants of a recipe, trained at the same time and compared on dev text; the test text is not touched.

    python benchmarks/sweep.py recipes/fast/en-vi.yaml --set training.max_steps=15000 \\
        --variant "as it is" --variant "twice the rate: training.learning_rate=2e-3" \\
        [--seconds 300] [--mps] [--keep FOLDER]

Each variant is ``qknorm train`` in a process of its own, all at once on one device, so times of a step are
not those of a training alone; --mps puts them under NVIDIA's multi-process service, which wastes less. What
outlasts --seconds is stopped, and compared by what it came to. Prints a table of all, then each one's curve.
--keep copies recipe, history, manifest and dev translations of each into a new folder.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from jobs import multi_process_service
from speedrun import curve_of, stop, table

from qknorm.config import Recipe, load_recipe
from qknorm.errors import UserError
from qknorm.paper.records import copy_run
from qknorm.run import Run

LOOK = 1.0
"""Seconds between two looks at what is running."""


class Variant(NamedTuple):
    name: str
    changes: list[str]

    @classmethod
    def of(cls, text: str) -> Variant:
        """From ``NAME`` or ``NAME: KEY=VALUE …``."""
        name, _, given = text.partition(":")
        try:
            changes = shlex.split(given)
        except ValueError:  # a quote that does not end
            changes = [given]
        variant = cls(name.strip(), changes)
        if not variant.folder or any("=" not in change for change in changes):
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME or NAME: KEY=VALUE …")
        return variant

    @property
    def folder(self) -> str:
        """Its name as that of a folder."""
        return re.sub(r"\W+", "-", self.name).strip("-")


def without_test(recipe: Recipe, folder: Path) -> list[str]:
    """Settings for a recipe to read its train and dev text, through links in a folder, no test text."""
    splits = recipe.data.paths()
    if splits.dev is None:
        raise UserError("The recipe names no dev text, on which variants are compared.")
    folder.mkdir()
    set_to = ["data.corpus=null", "data.folder=null", "data.test_source=null", "data.test_target=null"]
    for split, files in (("train", splits.train), ("dev", splits.dev)):
        for side, file in zip(("source", "target"), files, strict=True):
            link = folder / f"{split}-{side}{''.join(file.suffixes)}"
            link.symlink_to(file.absolute())
            set_to.append(f"data.{split}_{side}={link}")
    return set_to


def train_all(commands: dict[str, list[str]], seconds: float, logs: Path) -> dict[str, int | None]:
    """The exit code of each command, None for one that outlasted the time and was stopped."""
    running = {}
    for name, command in commands.items():
        with (logs / f"{name}.log").open("wb") as log:
            running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    codes: dict[str, int | None] = {}
    begun = time.monotonic()
    try:
        while len(codes) < len(running) and time.monotonic() - begun < seconds:
            for name, process in running.items():
                if name not in codes and process.poll() is not None:
                    codes[name] = process.returncode
                    print(f"{time.monotonic() - begun:.0f} s: {name} has ended", flush=True)
            time.sleep(LOOK)
    except KeyboardInterrupt:
        print("Stopping", flush=True)
    finally:
        stop([process for name, process in running.items() if name not in codes])
    return {name: codes.get(name) for name in running}


def summary(variants: list[Variant], histories: dict[str, list[dict[str, Any]]]) -> str:
    """All variants by what they came to, the lowest dev perplexity of each and its best dev BLEU."""
    rows = []
    for variant in variants:
        history = histories[variant.name]
        if not history:
            rows.append([variant.name, "no epoch was finished", *["–"] * 5])
            continue
        bleus = [row["dev_bleu"] for row in history if row["dev_bleu"] is not None]
        rows.append(
            [
                variant.name,
                " ".join(f"`{change}`" for change in variant.changes),
                f"{history[-1]['step']:,}",
                f"{max(bleus):.2f}" if bleus else "–",
                f"{min(row['dev_perplexity'] for row in history):.2f}",
                f"{history[-1]['train_perplexity']:.2f}",
                f"{history[-1]['elapsed']:.0f}",
            ]
        )
    head = ["variant", "settings", "updates", "dev BLEU", "dev perplexity", "train perplexity", "seconds"]
    return table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all variants")
    parser.add_argument(
        "--variant", action="append", required=True, type=Variant.of, metavar="'NAME: KEY=VALUE …'"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this")
    parser.add_argument("--mps", action="store_true", help="under NVIDIA's multi-process service")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy what is kept of the runs there")
    args = parser.parse_args()
    variants: list[Variant] = args.variant
    if args.keep and args.keep.exists():
        parser.error(f"{args.keep} is there already; name another folder for --keep, or remove it first")
    if len({variant.folder for variant in variants}) < len(variants):
        parser.error("two variants have the same name; give each its own")
    if args.mps and shutil.which("nvidia-cuda-mps-control") is None:
        parser.error("NVIDIA's multi-process service is not installed here; leave out --mps")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            recipe = load_recipe(args.recipe, args.set)
            common = [*args.set, *without_test(recipe, folder / "text")]
        except UserError as error:
            parser.error(str(error))
        if args.mps:
            stack.enter_context(multi_process_service())
        commands = {}
        for variant in variants:
            given = [word for change in [*common, *variant.changes] for word in ("--set", change)]
            run = str(folder / variant.folder)
            commands[variant.folder] = [
                *(sys.executable, "-m", "qknorm", "train", args.recipe, *given, "--run", run)
            ]
        if "OMP_NUM_THREADS" not in os.environ:  # of all together, as many as there are cores
            os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // len(variants)))
        codes = train_all(commands, args.seconds, folder)
        runs = {variant.name: Run(folder / variant.folder) for variant in variants}
        histories = {name: run.history() if run.exists else [] for name, run in runs.items()}
        for variant in variants:
            if codes[variant.folder]:
                said = (folder / f"{variant.folder}.log").read_text(errors="replace").splitlines()
                print(f"{variant.name} failed: {said[-1] if said else 'it said nothing'}")
        print(f"\n{summary(variants, histories)}")
        for name, history in histories.items():
            if history:
                print(f"\n{name}:\n\n{curve_of(history)}", flush=True)
        if args.keep:
            for variant in variants:
                if histories[variant.name]:
                    run = runs[variant.name]
                    plain = run.recipe().model_copy(update={"data": recipe.data})
                    copy_run(run, args.keep / variant.folder, plain, recipe.data.corpus or recipe.name)


if __name__ == "__main__":
    main()
