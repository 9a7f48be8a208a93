"""Modules that are slow to import wait until training needs them."""

import subprocess
import sys

CHILD = """
import sys, torch
from qknorm.training import train
from qknorm.training.warming import SLOW, _warm, warm_up
print({*SLOW, "torch._dynamo", "nltk", "matplotlib"} & {*sys.modules})
print(warm_up(torch.device("cpu")))
_warm(torch.device("meta"))
print({*SLOW} <= {*sys.modules})
"""


def test_what_is_slow_is_imported_by_warming_up():
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["set()", "None", "True", ""]
