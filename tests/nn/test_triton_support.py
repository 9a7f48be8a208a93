"""Whether kernels can be used is found out once a device, and a failure is put into words."""

import pytest
import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

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


def test_what_surrounds_the_trial_does_not_reach_it(monkeypatch):
    """Under vmap, or among fake tensors, no kernel can run: that must not count against Triton for ever."""

    def right(device):
        x = torch.zeros(3)
        return not is_functorch_wrapped_tensor(x) and not isinstance(x, FakeTensor) and bool((x == 0).all())

    def loss(x):
        failures.append(triton_failure(torch.device("cuda", 98)))
        return x.sum()

    monkeypatch.setattr(triton_support, "HAS_TRITON", True)
    monkeypatch.setattr(triton_support, "probe", right, raising=False)
    failures = []
    torch.func.vmap(torch.func.grad(loss))(torch.ones(2, 3))
    with FakeTensorMode():
        failures.append(triton_failure(NOWHERE))
    assert failures == [None, None] and triton_support._FAILURES == {98: None, 99: None}


def test_a_lack_of_memory_is_no_failure_of_triton(monkeypatch):
    def failing(device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(triton_support, "HAS_TRITON", True)
    monkeypatch.setattr(triton_support, "probe", failing, raising=False)
    with pytest.raises(torch.OutOfMemoryError):
        triton_failure(NOWHERE)
    assert triton_support._FAILURES == {}


def test_where_nothing_can_be_tried_nothing_is_recorded(monkeypatch):
    """In a capture, or where waiting is an error: the next call outside finds out."""
    tried = []
    monkeypatch.setattr(triton_support, "HAS_TRITON", True)
    monkeypatch.setattr(triton_support, "probe", lambda device: not tried.append(device), raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert triton_failure(NOWHERE) is None and not tried
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert triton_failure(NOWHERE) is None and not tried
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert triton_failure(NOWHERE) is None and tried == [NOWHERE]


@pytest.mark.gpu
def test_it_works_on_this_gpu():
    assert triton_failure(torch.device("cuda", 0)) is None and triton_takes(torch.zeros(3, device="cuda"))


@pytest.mark.gpu
def test_it_works_on_this_gpu_when_first_asked_under_vmap():
    def loss(x):
        assert triton_takes(x)
        return x.sum()

    torch.func.vmap(torch.func.grad(loss))(torch.ones(2, 3, device="cuda"))
    assert triton_support._FAILURES == {0: None}


@pytest.mark.gpu
def test_on_this_gpu_nothing_is_tried_where_waiting_is_an_error():
    torch.zeros(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert triton_failure(torch.device("cuda", 0)) is None
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert triton_support._FAILURES == {}
