"""Where Triton's kernels can be tried: on a GPU, or interpreted on a CPU (``TRITON_INTERPRET=1``).

The interpreter of Triton 3.6 wants a numpy below 2.4.
"""

import os

import pytest
import torch

from qknorm.nn.triton_support import HAS_TRITON

INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
anywhere = pytest.mark.filterwarnings("ignore::RuntimeWarning") if INTERPRETED else pytest.mark.gpu
"""For tests that need no compiler: interpreted, or on a GPU."""
