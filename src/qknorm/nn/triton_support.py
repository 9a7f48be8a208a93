"""Whether Triton's kernels can be used: it is there, it works on the device, and takes such a tensor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

HAS_TRITON = find_spec("triton") is not None
if HAS_TRITON:
    from qknorm.nn.triton_probe import probe

FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FORBIDDEN = 2
"""``torch.cuda.get_sync_debug_mode()`` where waiting for the device is an error."""
_FAILURES: dict[int | None, str | None] = {}
"""By number of the GPU: why Triton does not work there, None if it does; others were not tried yet."""


def triton_takes(x: Tensor) -> bool:
    """Whether Triton works on x's device, and its kernels take x's dtype."""
    return x.dtype in FUSED_DTYPES and triton_works(x)


def triton_works(x: Tensor) -> bool:
    """Whether Triton works on x's device."""
    return HAS_TRITON and x.is_cuda and triton_failure(x.device) is None


def triton_failure(device: torch.device) -> str | None:
    """Why Triton's kernels cannot run on this GPU (no C compiler, too old a GPU, …); None if they can.

    Found out once, by running one; where none can be run to its end, what is known by then counts.
    """
    if device.index not in _FAILURES and not _cannot_try():
        _FAILURES[device.index] = _tried(device)
    return _FAILURES.get(device.index)


def do_without_triton(device: torch.device, failure: str) -> None:
    """Use no more kernels on this GPU: a trial went well, but one that is needed has failed."""
    _FAILURES[device.index] = failure


def transformed(x: Tensor) -> bool:
    """Whether x is seen from inside ``torch.vmap`` and its kin, outside of compiled code."""
    return not torch.compiler.is_compiling() and is_functorch_wrapped_tensor(x)


def _cannot_try() -> bool:
    """Whether code is being compiled or captured, or the caller has forbidden to wait for the device."""
    if torch.compiler.is_compiling():
        return True
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    return torch.cuda.is_current_stream_capturing() or torch.cuda.get_sync_debug_mode() == FORBIDDEN


def _tried(device: torch.device) -> str | None:
    """In a thread of its own, which no ``torch.func`` transform, fake tensor mode or autocast reaches."""
    if not HAS_TRITON:
        return "it is not installed"
    try:
        with ThreadPoolExecutor(1) as aside:
            return None if aside.submit(probe, device).result() else "its results are wrong"
    except torch.OutOfMemoryError:
        raise  # it says nothing about Triton
    except Exception as error:  # whatever a compiler may say
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
