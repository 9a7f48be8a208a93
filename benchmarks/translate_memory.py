"""Whether `qknorm translate` keeps its memory flat over a long input.

    python benchmarks/translate_memory.py [--lines 1000000]

Trains the smallest of models on the phrasebook for a few updates (what it says does not matter here, that it
ends its sentences does), pipes that many lines through the real command and looks at its resident memory
every second. Lines out must be lines in.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from qknorm.config import make_recipe
from qknorm.data.phrasebook import write_phrasebook
from qknorm.progress import Progress
from qknorm.training import train

UPDATES = 200


def make_run(folder: Path) -> Path:
    """A run folder with a model of width 16, one layer a side."""
    write_phrasebook("en-gl", folder / "text", train=5000, dev=20, test=20)
    values = {
        "data": {"source": "en", "target": "gl", "folder": str(folder / "text")},
        "subwords": {"operations": 500},
        "model": {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        "training": {"batch_tokens": 2000, "max_steps": UPDATES, "learning_rate": 0.01, "warmup_steps": 20},
        "decoding": {"beam": 1, "max_extra": 2},
    }
    recipe = make_recipe(values, ())
    train(recipe, folder / "run", device="cpu", progress=Progress(quiet=True), cache=folder / "cache")
    return folder / "run"


def short_lines(folder: Path, count: int) -> Iterator[bytes]:
    """The shorter half of the phrasebook's lines over and over, each with its number, so that all differ."""
    phrases = sorted((folder / "text" / "train.en").read_bytes().splitlines(), key=len)
    endless = itertools.cycle(phrases[: len(phrases) // 2])
    for number, phrase in zip(range(count), endless, strict=False):
        yield b"%s %d\n" % (phrase, number)


def feed(lines: Iterator[bytes], stream: IO[bytes]) -> None:
    with stream:
        stream.writelines(lines)


def memory_mib(process: int) -> tuple[float, float] | None:
    """What a process holds in memory now, and the most it ever did; None once it has ended."""
    status = Path(f"/proc/{process}/status").read_text()
    if "VmRSS" not in status:
        return None
    now, most = (int(status.split(f"{field}:")[1].split()[0]) / 1024 for field in ("VmRSS", "VmHWM"))
    return now, most


class Watch(threading.Thread):
    """Notes every second how many lines have come out and how much memory the process holds."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.done = 0
        self.seen: list[tuple[int, float]] = []
        self.peak = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(1) and (held := memory_mib(self.process)):
            now, self.peak = held
            self.seen.append((self.done, now))

    def at(self, lines: int) -> float:
        """The memory when about so many lines had come out."""
        return min(self.seen, key=lambda each: abs(each[0] - lines))[1]


def translate(run: Path, lines: Iterator[bytes]) -> tuple[Watch, float]:
    """Pipe the lines through the command; what was seen, and the seconds it took."""
    command = [sys.executable, "-m", "qknorm", "translate", str(run), "--device", "cpu"]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        threading.Thread(target=feed, args=(lines, process.stdin), daemon=True).start()
        watch = Watch(process.pid)
        watch.start()
        for _ in process.stdout:
            watch.done += 1
        watch.over.set()
        watch.join()
    if process.returncode:
        sys.exit(f"qknorm translate ended with status {process.returncode}")
    return watch, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description="Watch the memory of qknorm translate over a long input.")
    parser.add_argument("--lines", type=int, default=1_000_000)
    count = parser.parse_args().lines
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        watch, seconds = translate(make_run(folder), short_lines(folder, count))
    if watch.done != count:
        sys.exit(f"{count} lines went in and {watch.done} came out")
    print(f"{count:,} lines in, {watch.done:,} out, {seconds:.0f} s, {count / seconds:.0f} lines/s")
    for percent in (10, 50, 100):
        print(f"resident memory at {percent:3}% of the lines: {watch.at(count * percent // 100):.0f} MiB")
    print(f"peak: {watch.peak:.0f} MiB")


if __name__ == "__main__":
    main()
