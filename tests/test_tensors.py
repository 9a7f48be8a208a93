"""Tensor files: whole or not at all, and refused when they are not as written."""

import errno

import pytest
import torch

from qknorm import tensors
from qknorm.errors import UserError
from qknorm.tensors import load_tensors, save_tensors


def content():
    return {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.tensor(2.5), "d": torch.ones(2).bool()}


def test_what_goes_in_comes_out(tmp_path):
    file, given = tmp_path / "x.safetensors", content()
    save_tensors(file, given, {"epoch": 3, "bleu": float("nan"), "list": [1, 2]})
    found, about = load_tensors(file)
    assert set(found) == set(given) and all(torch.equal(found[k], given[k]) for k in given)
    assert about["epoch"] == 3 and about["list"] == [1, 2] and about["bleu"] != about["bleu"]
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("where", [100, 0.5, -10, -1])
def test_a_flipped_bit_is_refused(tmp_path, where):
    file = tmp_path / "x.safetensors"
    save_tensors(file, content(), {"epoch": 3})
    raw = bytearray(file.read_bytes())
    raw[int(len(raw) * where) if isinstance(where, float) else where] ^= 1
    file.write_bytes(raw)
    with pytest.raises(UserError, match="altered|damaged|not written by"):
        load_tensors(file)


@pytest.mark.parametrize("kept", [0, 7, 200, -1])
def test_a_truncated_file_is_refused(tmp_path, kept):
    file = tmp_path / "x.safetensors"
    save_tensors(file, content(), {})
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UserError, match="damaged or cut short"):
        load_tensors(file)


def test_a_missing_or_foreign_file_is_named(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_tensors(tmp_path / "none")
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "foreign")
    with pytest.raises(UserError, match="not written by this version"):
        load_tensors(tmp_path / "foreign")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "x.safetensors"
    save_tensors(file, {"a": torch.zeros(2)}, {"epoch": 1})

    def full(tensors_, path, metadata):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensors, "save_file", full)
    with pytest.raises(UserError, match="No space left on device.*is intact.*Make room"):
        save_tensors(file, {"a": torch.ones(2)}, {"epoch": 2})
    found, about = load_tensors(file)
    assert about == {"epoch": 1} and torch.equal(found["a"], torch.zeros(2))
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
