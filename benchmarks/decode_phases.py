"""Where the time of ``decode_gpu.py``'s search goes: its parts, and on a GPU its kernels."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qknorm.translation import static
from qknorm.translation.waiting import Encoded

Spent = dict[str, list[float]]


@contextmanager
def phases(wait: Callable[[], None]) -> Iterator[Spent]:
    """Seconds of every call of the parts of a search; each is waited for, so that the sum is more."""
    spent: Spent = defaultdict(list)
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
            wait()
            start = time.perf_counter()
            result = inner(*args)
            wait()
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


def print_phases(title: str, spent: Spent) -> None:
    print(f"\n{title}: {'calls':>6}{'ms each':>9}{'seconds':>9}")
    for label, seconds in sorted(spent.items()):
        mean = 1e3 * statistics.mean(seconds)
        print(f"{label:>{len(title) + 1}} {len(seconds):>6}{mean:>9.3f}{sum(seconds):>9.3f}")


def print_kernels(search: Callable[[], object], on_gpu: bool) -> None:
    """The kernels (on a CPU: operators) that take longest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiled:
        search()
    key = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(profiled.key_averages().table(sort_by=key, row_limit=25, max_name_column_width=70))
