"""The demo's settings are those of its recipes, and it ends with what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

from qknorm.config import load_recipe
from qknorm.demo import STEPS, demo_recipe, run_demo
from qknorm.progress import Progress

RECIPES = Path(__file__).parent.parent / "recipes"


@pytest.mark.parametrize(("name", "file"), [("qknorm", "demo.yaml"), ("baseline", "demo-baseline.yaml")])
def test_the_demo_is_its_recipe(name, file):
    written = load_recipe(RECIPES / file)
    made = demo_recipe(Path("/nowhere"), name, STEPS)
    for section in ("subwords", "model", "training", "decoding"):
        assert getattr(made, section) == getattr(written, section), section


def test_a_short_demo_prints_everything(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("qknorm.demo.PAIRS", {"train": 300, "dev": 10, "test": 20})
    run_demo(tmp_path, Progress(quiet=True), steps=6)
    printed = capsys.readouterr().out
    for promised in ("QKNorm", "scaled dot product", "exactly right", "p = ", "→", "qknorm train --source"):
        assert promised in printed
    assert (tmp_path / "qknorm" / "best.safetensors").exists() and (tmp_path / "baseline").is_dir()
    run_demo(tmp_path, Progress(quiet=True), steps=6)  # again: nothing is trained a second time
    assert capsys.readouterr().out == printed


def test_the_command_is_wired():
    asked = [sys.executable, "-m", "qknorm", "demo", "--help"]
    assert "phrasebook" in subprocess.run(asked, capture_output=True, text=True, check=True).stdout.lower()
