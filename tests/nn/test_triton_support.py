"""Whether kernels can be used is found out once a device, and a failure is put into words."""

import pytest
import torch

from qknorm.nn import triton_support
from qknorm.nn.triton_support import triton_failure, triton_takes

NOWHERE = torch.device("cuda", 99)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(triton_support, "_FAILURES", {})


def test_a_cpu_tensor_is_nothing_for_it():
    assert not triton_takes(torch.zeros(3)) and triton_support._FAILURES == {}


def test_no_triton(monkeypatch):
    monkeypatch.setattr(triton_support, "HAS_TRITON", False)
    assert triton_failure(NOWHERE) == "it is not installed"


def test_a_failure_is_found_once_and_told_by_its_first_line(monkeypatch):
    tried = []

    def failing(device):
        tried.append(device)
        raise RuntimeError("\n  no C compiler found \nsecond line")

    monkeypatch.setattr(triton_support, "HAS_TRITON", True)
    monkeypatch.setattr(triton_support, "probe", failing, raising=False)
    assert triton_failure(NOWHERE) == triton_failure(NOWHERE) == "RuntimeError: no C compiler found"
    assert tried == [NOWHERE]


@pytest.mark.parametrize(("right", "failure"), [(True, None), (False, "its results are wrong")])
def test_a_kernel_that_runs(monkeypatch, right, failure):
    monkeypatch.setattr(triton_support, "HAS_TRITON", True)
    monkeypatch.setattr(triton_support, "probe", lambda device: right, raising=False)
    assert triton_failure(NOWHERE) == failure


@pytest.mark.gpu
def test_it_works_on_this_gpu():
    assert triton_failure(torch.device("cuda", 0)) is None and triton_takes(torch.zeros(3, device="cuda"))
