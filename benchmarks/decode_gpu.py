"""Beam decoding on a GPU: the captured search beside the plain one and HF MarianMT, and where its time goes.

Models of the paper's base size with random weights; sentence lengths like the en-vi dev set's. Two kinds of
work: "free", where EOS is made as likely as gives translations about as long as their sources, and what the
two searches find is compared; and "forced", where every translation is as long as its source (MarianMT: as
the longest of its batch).

    python benchmarks/decode_gpu.py [--sentences 1553] [--beam 4] [--rounds 3] [--kernels]
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from qknorm.ids import EOS
from qknorm.model import ModelSettings, Transformer
from qknorm.translation import Hypothesis, SearchSettings, beam_search, static
from qknorm.translation.waiting import Encoded

V, SPECIAL = 8400, 4
Found = list[list[Hypothesis]]


def sentences(count: int) -> list[list[int]]:
    """Random sentences of log-normal lengths, mean about 25, at most 120."""
    rng = random.Random(0)
    lengths = [max(1, min(120, round(rng.lognormvariate(3.05, 0.57)))) for _ in range(count)]
    return [[rng.randrange(SPECIAL, V) for _ in range(n)] for n in lengths]


def make_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(V, ModelSettings()).cuda().eval()


@torch.no_grad()
def calibrate(model: Transformer, sources: list[list[int]], settings: SearchSettings) -> float:
    """Set EOS's bias so that translations are about as long as their sources; returns their mean length."""
    low, high, length = -5.0, 15.0, 0.0
    wanted = statistics.mean(map(len, sources))
    for _ in range(12):
        model.embedding.bias[EOS] = (low + high) / 2
        length = statistics.mean(len(nbest[0].ids) for nbest in beam_search(model, sources, settings))
        if abs(length - wanted) < 0.03 * wanted:
            break
        low, high = ((low + high) / 2, high) if length > wanted else (low, (low + high) / 2)
    return length


def timed(function: Callable[[], Found]) -> tuple[float, Found]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = function()
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def print_row(name: str, seconds: list[float], count: int, first: float | None = None) -> None:
    begin = "" if first is None else f"{first:.3f}"
    print(
        f"{name:34}{begin:>9}{statistics.median(seconds):>9.3f}{min(seconds):>9.3f}{max(seconds):>9.3f}"
        f"{count / statistics.median(seconds):>13.0f}",
        flush=True,
    )


def measure(name: str, rounds: int, count: int, search: Callable[[], Found]) -> Found:
    """One search to begin with (what is captured is captured then), and ``rounds`` more."""
    first, found = timed(search)
    print_row(name, [timed(search)[0] for _ in range(rounds)], count, first)
    return found


def compare(ours: Found, plain: Found) -> None:
    """Say how far the captured search's findings are from the plain one's."""
    other = [i for i, (a, b) in enumerate(zip(ours, plain, strict=True)) if a[0].ids != b[0].ids]
    pairs = [(a[0], b[0]) for a, b in zip(ours, plain, strict=True)]
    apart = max((abs(a.score - b.score) for a, b in pairs if a.ids == b.ids), default=0.0)
    print(
        f"{len(pairs) - len(other)} of {len(pairs)} translations identical, their scores within {apart:.1e}"
    )
    for i in other[:5]:
        a, b = pairs[i]
        print(
            f"  sentence {i}: scores {a.score:.7f} and {b.score:.7f}, {len(a.ids)} and {len(b.ids)} subwords"
        )


@contextmanager
def phases() -> Iterator[dict[str, list[float]]]:
    """Seconds of every call of the parts of a search; each is waited for, so that the sum is more."""
    spent: dict[str, list[float]] = defaultdict(list)
    parts = [
        (Encoded, "of"),
        (static.Slots, "fill"),
        (static.Slots, "results"),
        (static.Slots, "move"),
        (static.StaticSearch, "_step"),
    ]
    before = [(owner, name, owner.__dict__[name]) for owner, name in parts]

    def watched(owner: type, name: str):  # type: ignore[no-untyped-def]
        inner = getattr(owner, name)

        def call(*args):  # type: ignore[no-untyped-def]
            known = len(args[0].graphs) if name == "_step" else 0
            torch.cuda.synchronize()
            start = time.perf_counter()
            result = inner(*args)
            torch.cuda.synchronize()
            label = {"of": "encode", "_step": "step"}.get(name, name)
            if name == "_step":
                label = "capture" if len(args[0].graphs) > known else f"step of {args[4]:3} slots"
            spent[label].append(time.perf_counter() - start)
            return result

        return call

    try:
        for owner, name in parts:
            made = watched(owner, name)
            setattr(owner, name, staticmethod(made) if owner is Encoded else made)
        yield spent
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def print_phases(title: str, spent: dict[str, list[float]]) -> None:
    print(f"\n{title}: {'calls':>6}{'ms each':>9}{'seconds':>9}")
    for label, seconds in sorted(spent.items()):
        mean = 1e3 * statistics.mean(seconds)
        print(f"{label:>{len(title) + 1}} {len(seconds):>6}{mean:>9.3f}{sum(seconds):>9.3f}")


def print_kernels(search: Callable[[], Found]) -> None:
    """The kernels that take longest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        search()
    print(
        profiled.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=70)
    )


def marian(sources: list[list[int]], beam: int, rounds: int) -> None:
    if importlib.util.find_spec("transformers") is None:
        print("HF MarianMT: left out, transformers is not installed (see benchmarks/requirements.txt)")
        return
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    shape = dict(vocab_size=V, d_model=512, activation_function="relu", forced_eos_token_id=None)
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": 6, f"{side}_attention_heads": 8, f"{side}_ffn_dim": 2048}
    special = dict(pad_token_id=0, eos_token_id=EOS, bos_token_id=2, decoder_start_token_id=2)
    model = MarianMTModel(MarianConfig(**shape, **special)).cuda().eval()
    ordered = sorted(sources, key=len, reverse=True)

    @torch.no_grad()
    def decode() -> Found:
        for at in range(0, len(ordered), 128):
            batch = ordered[at : at + 128]
            longest = max(map(len, batch))
            rows = [[*row, EOS, *[0] * (longest - len(row))] for row in batch]
            ids = torch.tensor(rows, device="cuda")
            model.generate(
                input_ids=ids,
                attention_mask=(ids != 0).long(),
                num_beams=beam,
                length_penalty=0.6,
                do_sample=False,
                min_new_tokens=longest,
                max_new_tokens=longest,
            )
        return []

    measure("forced, HF MarianMT float32", rounds, len(sources), decode)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=1553)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=8192, help="as decoding.batch_tokens of a recipe")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", action="store_true", help="also list the kernels that take longest")
    parser.add_argument("--no-plain", action="store_true", help="leave out the plain search and MarianMT")
    options = parser.parse_args()

    sources, model = sentences(options.sentences), make_model()
    settings = SearchSettings(beam=options.beam, batch_tokens=options.batch_tokens)
    with phases() as cold:
        length = calibrate(model, sources[:128], settings)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, beam {options.beam}; {len(sources)} "
        f"sentences of {statistics.mean(map(len, sources)):.1f} subwords, translations of about {length:.1f}"
    )
    static._SEARCHES.clear()
    print(f"\n{'seconds':34}{'first':>9}{'median':>9}{'fastest':>9}{'slowest':>9}{'sentences/s':>13}")
    rounds, count = options.rounds, len(sources)
    ours = measure("free, captured, float32", rounds, count, lambda: beam_search(model, sources, settings))
    peak = torch.cuda.max_memory_allocated() / 2**30
    half = copy.deepcopy(model).bfloat16()
    measure("free, captured, bfloat16", rounds, count, lambda: beam_search(half, sources, settings))
    if not options.no_plain:
        seconds, plain = timed(lambda: beam_search(model, sources, settings, _static=False))
        print_row("free, plain, float32", [seconds], count)

    forced, fixed = (
        copy.deepcopy(model),
        SearchSettings(beam=options.beam, max_extra=0, batch_tokens=options.batch_tokens),
    )
    with torch.no_grad():
        forced.embedding.bias[EOS] = -1e9
    measure("forced, captured, float32", rounds, count, lambda: beam_search(forced, sources, fixed))
    if not options.no_plain:
        marian(sources, options.beam, 1)
        compare(ours, plain)
    print(f"peak memory of the captured float32 search: {peak:.2f} GiB")

    print_phases("calibration, cold", cold)
    with phases() as warm:
        beam_search(model, sources, settings)
    print_phases("one search, warm", warm)
    if options.kernels:
        print_kernels(lambda: beam_search(model, sources, settings))


if __name__ == "__main__":
    main()
