"""Beam decoding on a GPU: the captured search beside the plain one and HF MarianMT, and where its time goes.

    python benchmarks/decode_gpu.py [--sentences 1553] [--beam 4] [--rounds 3] [--kernels] [--json FILE]
    python benchmarks/decode_gpu.py --device cpu --size tiny     # all of it in seconds, to try it

Models of the paper's base size with random weights; sentence lengths like the en-vi dev set's. Two kinds of
work: "free", where EOS is made as likely as gives translations about as long as their sources, and what the
two searches find is compared; and "forced", where every translation is as long as its source (MarianMT: as
the longest of its batch). On a CPU the captured search is the same one in slots, uncaptured.

Every row is printed, and written to FILE, when it is known: the captured search first. A peer that is absent
or fails has a line that says so.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from decode_phases import phases, print_kernels, print_phases

from qknorm.config import DecodingSettings
from qknorm.ids import EOS
from qknorm.model import ModelSettings, Transformer
from qknorm.translation import Hypothesis, SearchSettings, beam_search, static

SPECIAL = 4
Found = list[list[Hypothesis]]
Sources = list[list[int]]


class Size(NamedTuple):
    """What is decoded with, and how much."""

    model: ModelSettings
    vocabulary: int
    sentences: int
    longest: int


BASE = ModelSettings()
TINY = ModelSettings(d_model=32, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1)
SIZES = {"base": Size(BASE, 8400, 1553, 120), "tiny": Size(TINY, 100, 24, 16)}


class Bench:
    """What all measurements share: where they run, how long they may take, and what was found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.size, self.device = options, SIZES[options.size], options.device
        self.on_gpu = self.device.type == "cuda"
        self.end = time.perf_counter() + options.seconds
        self.sources = sentences(options.sentences, self.size)
        self.results: dict[str, Any] = {"rows": {}}

    def settings(self, **changed: int) -> SearchSettings:
        options = self.options
        return SearchSettings(beam=options.beam, batch_tokens=options.batch_tokens, **changed)

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def save(self) -> None:
        """Write what is known by now, in place of what was; the file is always a whole one."""
        if file := self.options.json:
            part = file.with_name(file.name + ".part")
            part.write_text(json.dumps(self.results, indent=1) + "\n")
            part.replace(file)

    def timed(self, search: Callable[[], Found]) -> tuple[float, Found]:
        self.wait()
        start = time.perf_counter()
        found = search()
        self.wait()
        return time.perf_counter() - start, found

    def measure(self, name: str, search: Callable[[], Found], rounds: int | None = None) -> Found | None:
        """A first search, in which what is captured is captured, and ``rounds`` more; a line about them.

        With no rounds the first counts. None where it was not run, or failed: the line says why.
        """
        rounds = self.options.rounds if rounds is None else rounds
        if time.perf_counter() > self.end:
            self.report(name, {"failure": "not run, --seconds are over"})
            return None
        try:
            first, found = self.timed(search)
            seconds = [self.timed(search)[0] for _ in range(rounds)] or [first]
        except Exception as error:  # whatever a search may raise: the others go on
            self.fail(name, error)
            return None
        self.report(name, {"first_s": first, "rounds_s": seconds})
        return found

    def fail(self, name: str, error: Exception) -> None:
        words = (str(error).strip() or "?").splitlines()[0][:160]
        self.report(name, {"failure": f"{type(error).__name__}: {words}"})

    def report(self, name: str, row: dict[str, Any]) -> None:
        """Print the row of a search, and keep it."""
        self.results["rows"][name] = row
        self.save()
        if "failure" in row:
            print(f"{name:34}{row['failure']}")
            return
        seconds = row["rounds_s"]
        median, rate = statistics.median(seconds), len(self.sources) / statistics.median(seconds)
        figures = (row["first_s"], median, min(seconds), max(seconds))
        print(f"{name:34}" + "".join(f"{figure:>9.3f}" for figure in figures) + f"{rate:>13.0f}")


def sentences(count: int | None, size: Size) -> Sources:
    """Random sentences of log-normal lengths, mean about 25, at most the longest there may be."""
    rng = random.Random(0)
    count = size.sentences if count is None else count
    lengths = [max(1, min(size.longest, round(rng.lognormvariate(3.05, 0.57)))) for _ in range(count)]
    return [[rng.randrange(SPECIAL, size.vocabulary) for _ in range(n)] for n in lengths]


@torch.no_grad()
def calibrate(model: Transformer, bench: Bench) -> float:
    """Set EOS's bias so that translations are about as long as their sources; returns their mean length."""
    low, high, length = -5.0, 15.0, 0.0
    sources = bench.sources[:128]
    wanted = statistics.mean(map(len, sources))
    for _ in range(12):
        model.embedding.bias[EOS] = (low + high) / 2
        found = beam_search(model, sources, bench.settings(), _static=True)
        length = statistics.mean(len(nbest[0].ids) for nbest in found)
        if abs(length - wanted) < 0.03 * wanted:
            break
        low, high = ((low + high) / 2, high) if length > wanted else (low, (low + high) / 2)
    return length


def compare(ours: Found, plain: Found, bench: Bench) -> None:
    """Say how far the captured search's findings are from the plain one's."""
    other = [i for i, (a, b) in enumerate(zip(ours, plain, strict=True)) if a[0].ids != b[0].ids]
    pairs = [(a[0], b[0]) for a, b in zip(ours, plain, strict=True)]
    apart = max((abs(a.score - b.score) for a, b in pairs if a.ids == b.ids), default=0.0)
    same = len(pairs) - len(other)
    print(f"{same} of {len(pairs)} translations identical, their scores within {apart:.1e}")
    for i in other[:5]:
        a, b = pairs[i]
        print(
            f"  sentence {i}: scores {a.score:.7f} and {b.score:.7f}, {len(a.ids)} and {len(b.ids)} subwords"
        )
    bench.results["identical"] = {"translations": same, "of": len(pairs), "scores_within": apart}
    bench.save()


def measure_marian(bench: Bench) -> None:
    name = "forced, HF MarianMT float32"
    if importlib.util.find_spec("transformers") is None:
        missing = "left out, transformers is not installed (benchmarks/requirements.txt)"
        bench.report(name, {"failure": missing})
        return
    try:
        decode = marian(bench)
    except Exception as error:  # as in ``measure``
        bench.fail(name, error)
        return
    bench.measure(name, decode, rounds=1)


def marian(bench: Bench) -> Callable[[], Found]:
    """HF's search, each translation as long as the longest source of its batch."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    size = bench.size
    model = size.model
    shape = dict(vocab_size=size.vocabulary, d_model=model.d_model, activation_function="relu")
    for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        shape |= {f"{side}_layers": layers, f"{side}_attention_heads": model.heads}
        shape |= {f"{side}_ffn_dim": model.d_ff}
    special = dict(pad_token_id=0, eos_token_id=EOS, bos_token_id=2, decoder_start_token_id=2)
    theirs = MarianMTModel(MarianConfig(**shape, **special, forced_eos_token_id=None))
    theirs = theirs.to(bench.device).eval()
    ordered = sorted(bench.sources, key=len, reverse=True)

    @torch.no_grad()
    def decode() -> Found:
        for at in range(0, len(ordered), 128):
            batch = ordered[at : at + 128]
            longest = max(map(len, batch))
            rows = [[*row, EOS, *[0] * (longest - len(row))] for row in batch]
            ids = torch.tensor(rows, device=bench.device)
            theirs.generate(
                input_ids=ids,
                attention_mask=(ids != 0).long(),
                num_beams=bench.options.beam,
                length_penalty=0.6,
                do_sample=False,
                min_new_tokens=longest,
                max_new_tokens=longest,
            )
        return []

    return decode


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--beam", type=int, default=4)
    present = DecodingSettings().batch_tokens
    parser.add_argument(
        "--batch-tokens", type=int, default=present, help="as decoding.batch_tokens of a recipe"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", action="store_true", help="also list the kernels that take longest")
    parser.add_argument("--no-plain", action="store_true", help="leave out the plain search and MarianMT")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no search after this")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if options.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --device cpu --size tiny tries the script without one")
    return options


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a run may be cut off
    bench = Bench(parse())
    options, sources = bench.options, bench.sources
    torch.manual_seed(0)
    model = Transformer(bench.size.vocabulary, bench.size.model).to(bench.device).eval()
    with phases(bench.wait) as cold:
        length = calibrate(model, bench)
    where = torch.cuda.get_device_name() if bench.on_gpu else f"{platform.machine()} CPU"
    bench.results |= {"torch": torch.__version__, "device": where, "beam": options.beam}
    bench.results |= {"sentences": len(sources), "translations_mean_length": length}
    print(
        f"{where}, torch {torch.__version__}, beam {options.beam}; {len(sources)} sentences of "
        f"{statistics.mean(map(len, sources)):.1f} subwords, translations of about {length:.1f}"
    )
    static._SEARCHES.clear()
    print(f"\n{'seconds':34}{'first':>9}{'median':>9}{'fastest':>9}{'slowest':>9}{'sentences/s':>13}")
    search = partial(beam_search, model, sources, bench.settings(), _static=True)
    ours = bench.measure("free, captured, float32", search)
    if bench.on_gpu:
        bench.results["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        print(f"peak memory of the captured float32 search: {bench.results['peak_gib']:.2f} GiB")
    half = copy.deepcopy(model).bfloat16()
    bench.measure(
        "free, captured, bfloat16", partial(beam_search, half, sources, bench.settings(), _static=True)
    )
    if not options.no_plain:
        plainly = partial(beam_search, model, sources, bench.settings(), _static=False)
        plain = bench.measure("free, plain, float32", plainly, rounds=0)
        if ours is not None and plain is not None:
            compare(ours, plain, bench)
    forced = copy.deepcopy(model)
    with torch.no_grad():
        forced.embedding.bias[EOS] = -1e9
    fixed = bench.settings(max_extra=0)
    bench.measure("forced, captured, float32", partial(beam_search, forced, sources, fixed, _static=True))
    if not options.no_plain:
        measure_marian(bench)
    print_phases("calibration, cold", cold)
    if time.perf_counter() < bench.end:
        with phases(bench.wait) as warm:
            search()
        print_phases("one search, warm", warm)
        if options.kernels:
            print_kernels(search, bench.on_gpu)


if __name__ == "__main__":
    main()
