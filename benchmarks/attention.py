"""Forward and backward of one attention layer: ours beside its peers, in one run.

    python benchmarks/attention.py                 # this machine's GPU if it has one, else the CPU
    python benchmarks/attention.py --device cpu --sizes 4x32 --rounds 3

Every candidate is a whole self-attention layer (projections included; 8 heads of width 64) on the same
input. Candidates alternate inside each round, and medians over the rounds are printed. On a GPU each is
timed eagerly, compiled, and compiled with forward and backward replayed as one CUDA graph (so that the
kernels are measured and not their launches).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qknorm.nn import MultiheadAttention, initial_scale

HEADS, WIDTH = 8, 64
E = HEADS * WIDTH
SIZES = ("128x32", "32x256", "8x1024")


class Plain(nn.Module):
    """The least there can be: projections around scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(E, 3 * E)
        self.out = nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3 * HEADS, WIDTH)).transpose(1, 2).chunk(3, dim=1)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Explicit(nn.Module):
    """The softmax written out, as the paper's authors did: normalise, product, scale, softmax, product."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(E, 3 * E)
        self.out = nn.Linear(E, E)
        self.g = nn.Parameter(torch.tensor(initial_scale(72)))

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            t.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2).reshape(-1, x.size(1), WIDTH)
            for t in self.qkv(x).chunk(3, dim=-1)
        )
        q, k, v = heads
        logits = torch.bmm(F.normalize(q, dim=-1), F.normalize(k, dim=-1).transpose(1, 2)) * self.g
        mixed = torch.bmm(logits.softmax(dim=-1), v)
        return self.out(mixed.unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(-2))


class Ours(nn.Module):
    def __init__(self, qk_norm: str | None) -> None:
        super().__init__()
        options = {} if qk_norm is None else {"length": 72}
        self.attention = MultiheadAttention(E, HEADS, batch_first=True, qk_norm=qk_norm, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Torchs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(E, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class XTransformers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from x_transformers.x_transformers import Attention

        self.attention = Attention(dim=E, heads=HEADS, dim_head=WIDTH, flash=True, qk_norm=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.attention(x)
        return out[0] if isinstance(out, tuple) else out


CANDIDATES: dict[str, Callable[[], nn.Module]] = {
    "qknorm": lambda: Ours("l2"),
    "qknorm, qk_norm=None": lambda: Ours(None),
    "plain SDPA": Plain,
    "torch.nn.MultiheadAttention": Torchs,
    "x-transformers attn_qk_norm": XTransformers,
    "explicit softmax": Explicit,
}
OURS, BARE, X, WRITTEN = "qknorm", "qknorm, qk_norm=None", "x-transformers attn_qk_norm", "explicit softmax"


def build(name: str, device: torch.device, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return CANDIDATES[name]().to(device, dtype)


def step_of(
    module: Callable[[Tensor], Tensor], parameters: list[Tensor], x: Tensor, up: Tensor
) -> Callable[[], None]:
    """Forward and backward; gradients are made anew each time, none is added to."""

    def step() -> None:
        torch.autograd.grad(module(x), [x, *parameters], up)

    return step


def graphed(step: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(kept: Callable[[], None] = step) -> None:  # the graph reads the step's weights: keep them
        graph.replay()

    return replay


def milliseconds(step: Callable[[], None], times: int, device: torch.device) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            step()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / times
    begun = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - begun) * 1000 / times


def peak_mib(name: str, size: str, device: torch.device, dtype: torch.dtype) -> float:
    """Memory one forward and backward takes beyond weights and input."""
    if device.type == "cpu":
        asked = [sys.executable, __file__, "--memory-of", name, "--sizes", size]
        return float(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    module, x, up = build(name, device, dtype), *inputs(size, device, dtype)
    step = step_of(module, list(module.parameters()), x, up)
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def memory_of(name: str, size: str) -> float:
    """On the CPU, in a process of its own: how far the resident set grows (Linux)."""
    device, dtype = torch.device("cpu"), torch.float32
    module, x, up = build(name, device, dtype), *inputs(size, device, dtype)
    small = step_of(module, list(module.parameters()), *inputs("1x2", device, dtype))
    small()  # libraries loaded, threads started
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = resident_mib("VmRSS")
    step_of(module, list(module.parameters()), x, up)()
    return resident_mib("VmHWM") - before


def resident_mib(key: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{key}:")[2].split()[0]) / 1024


def inputs(size: str, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    batch, length = map(int, size.split("x"))
    rng = torch.Generator().manual_seed(1)
    x, up = (torch.randn(batch, length, E, generator=rng).to(device, dtype) for _ in "xu")
    return x.requires_grad_(), up


def measure(size: str, mode: str, names: list[str], args: argparse.Namespace) -> dict[str, float]:
    x, up = inputs(size, args.device, args.dtype)
    torch.compiler.reset()
    steps = {}
    for name in names:
        module = build(name, args.device, args.dtype)
        begun = time.perf_counter()
        function = module if mode == "eager" else torch.compile(module, dynamic=False)
        step = step_of(function, list(module.parameters()), x, up)
        for _ in range(3):
            step()
        steps[name] = graphed(step) if mode == "graph" else step
        steps[name]()
        print(
            f"  ready: {size} {mode} {name} ({time.perf_counter() - begun:.1f} s)",
            file=sys.stderr,
            flush=True,
        )
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name, step in steps.items():
            taken[name].append(milliseconds(step, args.times, args.device))
    return {name: statistics.median(times) for name, times in taken.items()}


def render(results: dict[str, dict[str, dict[str, float]]], modes: list[str], names: list[str]) -> str:
    lines = []
    for size, found in results.items():
        lines += [f"batch x length {size}: milliseconds (times qknorm), peak MiB", ""]
        lines.append("| candidate | " + " | ".join(modes) + " | peak MiB |")
        lines.append("|---" * (len(modes) + 2) + "|")
        for name in names:
            cells = [f"{found[m][name]:.3f} ({found[m][name] / found[m][OURS]:.2f}x)" for m in modes]
            lines.append(f"| {name} | {' | '.join(cells)} | {found['peak MiB'][name]:.1f} |")
        for mode in modes:
            ratio = found[mode][OURS] / found[mode][BARE]
            rivals = [n for n in (X, WRITTEN) if n in names]
            ahead = all(found[mode][OURS] < found[mode][n] for n in rivals)
            lines.append(
                f"{mode}: {ratio:.3f}x of the same module without normalisation; "
                f"{'ahead of' if ahead else 'NOT ahead of all of'} {', '.join(rivals)}"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), help="batch x length, e.g. 128x32")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--modes", nargs="+", default=None, choices=["eager", "compiled", "graph"])
    parser.add_argument("--json", help="write the figures here too")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        print(memory_of(args.memory_of, args.sizes[0]))
        return
    args.device = torch.device(args.device)
    on_gpu = args.device.type == "cuda"
    args.dtype = torch.bfloat16 if on_gpu else torch.float32
    args.rounds = args.rounds or (21 if on_gpu else 5)
    args.times = 20 if on_gpu else 1
    modes = args.modes or (["eager", "compiled", "graph"] if on_gpu else ["eager"])
    names = list(CANDIDATES)
    try:
        build(X, torch.device("cpu"), torch.float32)
    except ImportError as error:
        names.remove(X)
        print(f"left out: {X} ({error})")
    where = (
        torch.cuda.get_device_name()
        if on_gpu
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    print(
        f"torch {torch.__version__}, {where}, {str(args.dtype).split('.')[1]}, forward + backward, "
        f"8 heads of width 64, medians of {args.rounds} rounds\n",
        flush=True,
    )
    results: dict[str, dict[str, dict[str, float]]] = {}
    for size in args.sizes:
        results[size] = {mode: measure(size, mode, names, args) for mode in modes}
        results[size]["peak MiB"] = {name: peak_mib(name, size, args.device, args.dtype) for name in names}
        print(render({size: results[size]}, modes, names), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "device": where, "milliseconds": results}, file, indent=1)


if __name__ == "__main__":
    main()
