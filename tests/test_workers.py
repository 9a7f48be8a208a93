"""Work shared out among processes: everything once, evenly, and one process as if there were none."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qknorm.workers import Workers, share_out


@given(st.lists(st.integers(0, 500), max_size=40), st.integers(1, 9))
def test_shares_hold_everything_once_and_are_even(costs, size):
    shares = share_out(costs, size)
    assert len(shares) == size and sorted(i for share in shares for i in share) == list(range(len(costs)))
    assert all(share == sorted(share) for share in shares)
    assert sum(map(bool, shares)) == min(size, len(costs)) and bool(shares[0]) == bool(costs)
    loads = [sum(max(costs[i], 1) for i in share) for share in shares]
    assert max(loads) - min(loads) <= max([1, *costs])


def test_batches_of_an_update_are_shared_by_tokens():
    assert share_out([30, 10, 20, 10, 30], 2) == [[0, 2], [1, 3, 4]]
    assert share_out([7], 3) == [[0], [], []]


def test_one_process_needs_no_other():
    alone = Workers.start("cpu")
    weight = torch.ones(2, requires_grad=True)
    with alone as workers, workers.first_alone():
        assert workers.first and workers.total(2.5, 3) == [2.5, 3]
        assert workers.tell({"a": 1}) == {"a": 1} and workers.gather(4) == [4]
        found = object()
        assert workers.divide([5, 1], lambda mine: [found, mine]) == [found, [0, 1]], "not even through JSON"
        workers.mean_gradients([weight], 0.5)
        assert weight.grad is None and not workers.stopping
        workers.stop_asked = True
        assert workers.stopping


def test_torchruns_environment_with_one_process_is_one_process(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert Workers.start("cpu").size == 1 and not torch.distributed.is_initialized()


def test_processes_need_a_gpu_each(monkeypatch):
    from qknorm.errors import UserError

    given = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="no GPU for process 1 of this machine, which has 1"):
        Workers.start("cuda")
    with pytest.raises(UserError, match="not all cuda:0; leave --device out"):
        Workers.start("cuda:0")
