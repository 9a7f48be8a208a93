"""How long a large corpus takes to be learnt and encoded, in how much memory, and to be opened again.

    python benchmarks/encode.py [--pairs 1000000] [--kind words|raw]

The pairs are made up: words drawn by Zipf's law from 60,000 a language, 25 a sentence on average. Each
stage runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qknorm.data import EncodedCorpus, Subwords, check_corpus

WORDS, MEAN_LENGTH, CHUNK = 60_000, 25, 20_000
LETTERS = {"source": "abcdefghijklmnopqrstuvwxyz", "target": "абвгдежзийклмнопрстуфхцчшщъыьэюя"}


def make(folder: Path, pairs: int) -> dict[str, Any]:
    """Write the two files."""
    for place, (side, letters) in enumerate(LETTERS.items()):
        generator = np.random.default_rng([1, place])
        sizes = 2 + generator.poisson(5, WORDS)
        words = np.array(["".join(generator.choice(list(letters), size)) for size in sizes], dtype=object)
        weights = 1 / np.arange(1, WORDS + 1)
        bounds = np.cumsum(weights / weights.sum())
        with open(folder / side, "w", encoding="utf-8", newline="\n") as file:
            for start in range(0, pairs, CHUNK):
                lengths = 1 + generator.poisson(MEAN_LENGTH - 1, min(CHUNK, pairs - start))
                drawn = words[np.searchsorted(bounds, generator.random(lengths.sum()))]
                for sentence in np.split(drawn, np.cumsum(lengths)[:-1]):
                    file.write(" ".join(sentence) + "\n")
    return {"megabytes": sum((folder / side).stat().st_size for side in LETTERS) // 10**6}


def check(folder: Path, _: str) -> dict[str, Any]:
    report = check_corpus((folder / "source", folder / "target"))
    return {"errors": len(report.errors), "warnings": len(report.warnings)}


def learn(folder: Path, kind: Any) -> dict[str, Any]:
    subwords = Subwords.learn(folder / "source", folder / "target", kind=kind)
    subwords.save(folder / "subwords.json")
    return {"subwords": subwords.size}


def encode(folder: Path, _: str) -> dict[str, Any]:
    subwords = Subwords.load(folder / "subwords.json")
    corpus = EncodedCorpus.open(folder / "source", folder / "target", subwords, folder / "cache")
    return {"examples": len(corpus), "L": corpus.length_percentile()}


def reopen(folder: Path, _: str) -> dict[str, Any]:
    return encode(folder, _)


def measure(stage: Callable[..., dict[str, Any]], folder: Path, argument: Any) -> dict[str, Any]:
    """Run a stage in a new process: its seconds, peak memory and what it found."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measured, args=(stage, folder, argument, theirs))
    process.start()
    theirs.close()
    result: dict[str, Any] = ours.recv()
    process.join()
    return result


def _measured(stage: Callable[..., dict[str, Any]], folder: Path, argument: Any, pipe: Any) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    found = stage(folder, argument)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1 << 20 if sys.platform == "darwin" else 1 << 10
    )
    seconds = {
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
    }
    pipe.send(seconds | {"peak_mib": round(peak)} | found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time the learning of subwords and the encoding of a corpus."
    )
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=["words", "raw"], default="words")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"make     {json.dumps(measure(make, folder, arguments.pairs))}", flush=True)
        for stage in (check, learn, encode, reopen):
            result = measure(stage, folder, arguments.kind)
            speed = {"pairs_per_second": round(arguments.pairs / max(result["seconds"], 0.01))}
            print(f"{stage.__name__:8} {json.dumps(result | speed)}", flush=True)


if __name__ == "__main__":
    main()
