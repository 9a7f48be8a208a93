"""Checkpoints in the background: whole, in order, of the moment they were asked for; failures are told."""

import pytest
import torch

from qknorm.errors import UserError
from qknorm.tensors import load_tensors
from qknorm.training.saver import Saver


@pytest.mark.parametrize("in_background", [False, True])
def test_what_is_saved_is_what_stood_there_then(tmp_path, in_background):
    saver, weights = Saver(in_background), torch.zeros(1000, 100)
    for number in range(1, 4):
        weights.fill_(number)
        saver.save(tmp_path / "a", {"w": weights}, {"number": number})
        weights.fill_(-1)
    saver.save(tmp_path / "b", {"w": weights}, {})
    saver.wait()
    tensors, about = load_tensors(tmp_path / "a")
    assert about == {"number": 3} and tensors["w"].eq(3).all()
    assert load_tensors(tmp_path / "b")[0]["w"].eq(-1).all()


def test_a_failure_is_raised_by_the_next_save_or_the_end(tmp_path):
    saver, gone = Saver(True), tmp_path / "missing" / "a"
    saver.save(gone, {"w": torch.ones(2)}, {})
    with pytest.raises(UserError, match="could not be written"):
        saver.save(gone, {"w": torch.ones(2)}, {})
    saver.save(gone, {"w": torch.ones(2)}, {})
    with pytest.raises(UserError, match="could not be written"):
        saver.wait()
    saver.wait()


@pytest.mark.gpu
def test_a_gpus_tensors_are_copied_before_save_returns(tmp_path):
    saver = Saver(True)
    weights = torch.zeros(4000, 1000, device="cuda")
    for number in range(1, 4):
        weights.fill_(number)
        saver.save(tmp_path / "a", {"w": weights, "b": torch.full((2,), float(number))}, {"number": number})
        weights.fill_(-1)
    saver.wait()
    tensors, about = load_tensors(tmp_path / "a")
    assert about == {"number": 3} and tensors["w"].eq(3).all() and tensors["b"].eq(3).all()


def test_one_file_can_be_waited_for(tmp_path):
    saver, gone = Saver(True), tmp_path / "missing" / "b"
    saver.save(tmp_path / "a", {"w": torch.ones(2)}, {})
    saver.save(gone, {"w": torch.ones(2)}, {})
    saver.wait(tmp_path / "a")
    assert load_tensors(tmp_path / "a")[0]["w"].eq(1).all()
    saver.wait(tmp_path / "c")  # nothing was asked of it
    with pytest.raises(UserError, match="could not be written"):
        saver.wait()
