"""Packed attention on a GPU: the kernels over spans beside the older path, and a search for their tiles.

    python benchmarks/packed_attention.py [--json FILE] [--rounds 21] [--no-older]
    python benchmarks/packed_attention.py --sweep [--seconds 300]

One attention module between its projections: from projected heads to the mixed values, normalisation and
dropout included, in a buffer of 4096 rows. "older" is one kernel that normalises and flash attention over
sentences, compiled by torch.compile. Every time is of one call of many in a CUDA graph, so that kernels are
measured and not their launches; candidates alternate in rounds, and medians over the rounds are printed.
"forward" keeps what a backward needs, "backward" is what "both" takes beyond "forward".

Lengths: "fixed 32" is 128 sentences of 32; "all of 8" and so on are batches as training has them, sentences
of one length in the target and within 20% of it in the source; "mixed" is a batch as en-vi's sentences come.
"self" is attention inside the source, "causal" inside the target, "cross" from target to source.

The sweep tries tiles of the three kernels one after the other, the likely ones first, and keeps of each
kernel the tile with the least mean time: mixed batches weigh one half, those of one length what they have of
en-vi's subwords. A tile is rows of queries, keys, warps and stages; one that does not compile, or whose
result is not that of the tile there was, is named and left out. Cross-attention takes no part in it.

Axes: R rows of a buffer, H heads, D width of one head.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from packed_cases import EPS, LONGEST, Case, Step, Times, medians, token_shares
from torch import Tensor

from qknorm.nn.functional import l2_normalize
from qknorm.nn.heads import normalized_heads
from qknorm.nn.packed import Packing, packed_attention
from qknorm.nn.triton_support import HAS_TRITON

if HAS_TRITON:
    import triton
    from packed_tiles import sweep

    from qknorm.nn.span_ops import TILES, WIDE_TILES

LENGTHS = ("fixed 32", *token_shares())
KINDS = ("self", "causal", "cross")
PARTS = ("forward", "backward", "both")
Found = dict[str, Times]  # by candidate


def older_path(
    q: Tensor, kv: Tensor | None, g: Tensor, packing: Packing, keys: Packing | None, is_causal: bool, p: float
) -> Tensor:
    if kv is None:
        q, k, v = normalized_heads(q, g, EPS)
    else:
        k, v = kv.chunk(2, dim=1)
        q, k = l2_normalize(q, g[:, None], EPS), l2_normalize(k, eps=EPS)
    return packed_attention(q, k, v, packing, keys, is_causal, p)


def candidates(case: Case, older: Callable[..., Tensor] | None) -> dict[str, Callable[[], Tensor]]:
    """The forward of each."""
    found = {"spans": case.spanned}
    if older is not None:
        given = (case.q, case.kv, case.g, case.packing, case.key_packing, case.kind == "causal")
        found["older"] = lambda: older(*given, case.dropout_p)
    return found


def measure(case: Case, older: Callable[..., Tensor] | None, rounds: int) -> Found:
    """Forward, backward and both of each candidate."""
    forwards = candidates(case, older)
    steps: dict[str, Step] = {}
    for name, forward in forwards.items():
        steps[f"{name} forward"] = forward
        steps[f"{name} both"] = both_ways(case, forward)
    times = medians(steps, rounds)
    return {name: parts_of(times[f"{name} forward"], times[f"{name} both"]) for name in forwards}


def both_ways(case: Case, forward: Callable[[], Tensor]) -> Step:
    return lambda: case.gradients(forward())


def parts_of(forward: float, both: float) -> Times:
    return {"forward": forward, "backward": both - forward, "both": both}


def heading(names: list[str]) -> str:
    columns = [f"{name} {part}" for name in names for part in PARTS]
    columns = ["lengths", "attention", *columns, *(f"{name} / {names[0]}" for name in names[1:])]
    return "| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|"


def row_of(lengths: str, kind: str, found: Found) -> str:
    cells = [f"{times[part]:.1f}" for times in found.values() for part in PARTS]
    first, *others = (times["both"] for times in found.values())
    return "| " + " | ".join([lengths, kind, *cells, *(f"{other / first:.2f}x" for other in others)]) + " |"


def compare(cases: list[Case], older: Callable[..., Tensor] | None, rounds: int) -> dict[str, Found]:
    """Measure and print row by row."""
    print("\nmicroseconds of a call; how many times those of the spans both ways take")
    print(heading(["spans"] if older is None else ["spans", "older"]), flush=True)
    results = {}
    for case in cases:
        results[case.name] = measure(case, older, rounds)
        print(row_of(case.lengths, case.kind, results[case.name]), flush=True)
    return results


def compare_tiles(cases: list[Case], before: dict[str, Found], rounds: int) -> dict[str, Times]:
    """The table again with the tiles that were found, beside what it said before."""
    print("\nmicroseconds with these tiles, and what was measured before the search")
    print(heading(["spans", *(f"{name} before" for name in before[cases[0].name])]), flush=True)
    results = {}
    for case in cases:
        now = measure(case, None, rounds)
        earlier = {f"{name} before": times for name, times in before[case.name].items()}
        print(row_of(case.lengths, case.kind, now | earlier), flush=True)
        results[case.name] = now["spans"]
    return results


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4096, help="of the buffers")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of one head")
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--lengths", nargs="+", default=list(LENGTHS), choices=LENGTHS)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--no-older", action="store_true", help="leave out the older path")
    parser.add_argument("--sweep", action="store_true", help="then search for better tiles")
    parser.add_argument("--seconds", type=float, default=300, help="for the search, an equal part a kernel")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "There is no GPU here, and this benchmark times kernels that run on one only.\n")
    if not HAS_TRITON:
        parser.exit(2, "Triton is not installed, and the kernels over spans are written in it.\n")
    if options.rows < LONGEST:
        parser.error(f"--rows must be at least {LONGEST}, the longest sentence")
    if options.sweep and not set(options.lengths) & set(token_shares()):
        parser.error(f"--sweep needs batches of one length: {', '.join(token_shares())}")
    options.dtype, options.device = getattr(torch, options.dtype), torch.device("cuda")
    return options


def main() -> None:
    options = parse()
    about: dict[str, Any] = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "device": torch.cuda.get_device_name(),
        "dtype": str(options.dtype).split(".")[1],
        **{key: getattr(options, key) for key in ("rows", "heads", "width", "dropout", "rounds")},
    }
    tiles = WIDE_TILES if options.dtype == torch.float32 else TILES
    print(
        f"torch {about['torch']}, Triton {about['triton']}, {about['device']}, {about['dtype']}, "
        f"{options.heads} heads of width {options.width}, {options.rows} rows, dropout {options.dropout}, "
        f"medians of {options.rounds} rounds; tiles {render_tiles(tiles)}"
    )
    cases = [Case.of(lengths, kind, options) for lengths in options.lengths for kind in KINDS]
    older = None if options.no_older else torch.compile(older_path, fullgraph=True, dynamic=False)
    results: dict[str, Any] = {**about, "tiles": dict(tiles)}
    results["microseconds"] = found = compare(cases, older, options.rounds)
    write(results, options.json)
    if options.sweep:
        results["trials"] = sweep(cases, tiles, options.width, options.seconds)
        results["tiles_found"] = dict(tiles)
        print(f"\nthe tiles found: {render_tiles(tiles)}")
        write(results, options.json)
        results["microseconds_found"] = compare_tiles(cases, found, options.rounds)
        write(results, options.json)


def render_tiles(tiles: dict[str, Any]) -> str:
    return ", ".join(f"{kernel} {tuple(tile)}" for kernel, tile in tiles.items())


def write(results: dict[str, Any], file: Path | None) -> None:
    if file:
        file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
