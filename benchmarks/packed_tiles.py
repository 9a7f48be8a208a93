"""A search for the tiles of the kernels over spans; ``packed_attention.py --sweep`` says what is sought."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import NamedTuple

from packed_cases import Case, Step, Times, medians, token_shares
from torch import Tensor
from triton.errors import TritonError

from qknorm.nn.span_ops import Tile

SWEPT = ("self", "causal")  # cross-attention's kernels differ only in their strides
FIRST_SIZES = ((32, 32), (64, 32), (32, 64), (16, 32), (16, 16), (64, 16))
SIDES, WARPS = (16, 32, 64, 128), (1, 2, 4, 8)
KERNELS = {"keys": "whole backward", "queries": "whole backward", "forward": "forward"}
AWAY, ROUNDS, SHOWN = 0.02, 7, 8


def likely_tiles(present: Tile, width: int) -> list[Tile]:
    """Every tile worth a try: the present one, the likely ones, the rest."""
    first = [Tile(*size, w, s) for s, w, size in itertools.product((1, 2), (2, 4), FIRST_SIZES)]
    every = [Tile(*tile) for tile in itertools.product(SIDES, SIDES, WARPS, (1, 2))]
    rest = [tile for tile in every if fits_registers(tile, width)]
    rest.sort(key=lambda tile: (tile.stages, tile.warps in (1, 8), tile.rows * tile.keys))
    return list(dict.fromkeys([present, *first, *rest]))


def fits_registers(tile: Tile, width: int) -> bool:
    """Whether a thread holds at most 128 numbers of the largest matrix."""
    largest = max(tile.rows * tile.keys, tile.rows * width, tile.keys * width)
    return largest <= 128 * 32 * tile.warps


class Trial(NamedTuple):
    """A tile and its microseconds."""

    tile: Tile
    mean: float
    times: Times  # by case


class Work(NamedTuple):
    """What one kernel is timed at, on one case."""

    case: Case
    step: Step
    wanted: Tensor  # what the step gave with the tile there was

    @classmethod
    def of(cls, case: Case, step: Step) -> Work:
        return cls(case, step, step()[0])


def sweep(cases: list[Case], tiles: dict[str, Tile], width: int, seconds: float) -> dict[str, list[Trial]]:
    """Trials of each kernel from the fastest on; the fastest tile takes its kernel's place in ``tiles``."""
    end = time.monotonic() + seconds
    swept = [(case, case.kernel_steps()) for case in cases if is_swept(case)]
    trials = {}
    for place, (kernel, direction) in enumerate(KERNELS.items()):
        now = time.monotonic()
        stop = now + (end - now) / (len(KERNELS) - place)
        print(f"\n{kernel}: microseconds of the {direction}, at present {tuple(tiles[kernel])}", flush=True)
        works = [Work.of(case, steps[direction]) for case, steps in swept]
        trials[kernel] = try_tiles(kernel, tiles, works, likely_tiles(tiles[kernel], width), stop)
        tiles[kernel] = trials[kernel][0].tile
        print(render(trials[kernel]), flush=True)
    return trials


def is_swept(case: Case) -> bool:
    return case.kind in SWEPT and case.lengths in token_shares()


def try_tiles(
    kernel: str, tiles: dict[str, Tile], works: list[Work], tried: list[Tile], stop: float
) -> list[Trial]:
    """Trials until time is up, from the fastest on; the first tile is tried in any case."""
    trials = []
    for number, tile in enumerate(tried):
        if number and time.monotonic() > stop:
            print(f"time is up after {number} of {len(tried)} tiles", flush=True)
            break
        tiles[kernel] = tile
        trial = try_tile(tile, works)
        if isinstance(trial, Trial):
            trials.append(trial)
        else:
            print(f"left out {tuple(tile)}: {trial}", flush=True)
    return sorted(trials, key=lambda trial: trial.mean)


def try_tile(tile: Tile, works: list[Work]) -> Trial | str:
    """Times with the tile that is in place now, or why there are none."""
    times = {}
    try:
        for case, step, wanted in works:
            if not distance(step()[0], wanted) < AWAY:  # also where it is no number
                return "its result is not that of the tile there was"
            times[case.name] = medians({"": step}, ROUNDS)[""]
    except TritonError as error:  # too much shared memory, for one
        return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    shares = [token_shares()[case.lengths] for case, *_ in works]
    return Trial(tile, statistics.fmean(times.values(), weights=shares), times)


def distance(found: Tensor, wanted: Tensor) -> float:
    """How far apart, by their norms."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def render(trials: list[Trial]) -> str:
    """The fastest, and each case's time."""
    columns = ["rows, keys, warps, stages", "mean", *trials[0].times]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for tile, mean, times in trials[:SHOWN]:
        cells = [", ".join(map(str, tile)), *(f"{each:.1f}" for each in (mean, *times.values()))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
