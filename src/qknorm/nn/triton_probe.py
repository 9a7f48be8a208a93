"""The smallest kernel there is, to see whether kernels can be compiled and run."""
# mypy: ignore-errors

import torch
import triton
import triton.language as tl


@triton.jit
def add_one(x, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(x + at, tl.load(x + at) + 1.0)


def probe(device: torch.device) -> bool:
    """Whether a kernel does what it should on this GPU; raises what Triton raises."""
    x = torch.zeros(16, device=device)
    with torch.cuda.device(device):
        add_one[(1,)](x, 16)
    return bool((x == 1.0).all())
