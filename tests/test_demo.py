"""The demo's settings are those of its recipes, and it ends with what it promises."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("babel", reason="needs the Python package babel")

from qknorm.config import load_recipe
from qknorm.demo import STEPS, demo_recipe, next_steps, run_demo
from qknorm.progress import Progress
from support.command import Command

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
    for promised in ("QKNorm", "scaled dot product", "exactly right", "p = ", "→", "train --source"):
        assert promised in printed
    assert f" serve {tmp_path}/qknorm {tmp_path}/baseline\n" in printed
    assert f"looks, by layer and head: {tmp_path}/heatmap.png\n" in printed
    assert (tmp_path / "qknorm" / "best.safetensors").exists() and (tmp_path / "baseline").is_dir()
    run_demo(tmp_path, Progress(quiet=True), steps=6)  # again: nothing is trained a second time
    assert capsys.readouterr().out == printed
    (shown,) = (line for line in printed.split("\n") if " attention " in line)
    picture = (tmp_path / "heatmap.png").read_bytes()
    (tmp_path / "heatmap.png").unlink()
    assert Command(tmp_path, monkeypatch, capsys)(*shlex.split(shown.partition("qknorm ")[2])).code == 0
    assert (tmp_path / "heatmap.png").read_bytes() == picture


def test_what_to_run_next_can_be_run_as_printed(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    for called, command in ((".venv/bin/qknorm", ".venv/bin/qknorm"), ("-m", f"{sys.executable} -m qknorm")):
        monkeypatch.setattr(sys, "argv", [called, "demo"])
        printed = next_steps(Path("my runs"), "xoves").split("\n")
        assert f"  {command} serve 'my runs/qknorm' 'my runs/baseline'" in printed


def test_the_command_is_wired():
    asked = [sys.executable, "-m", "qknorm", "demo", "--help"]
    assert "phrasebook" in subprocess.run(asked, capture_output=True, text=True, check=True).stdout.lower()
