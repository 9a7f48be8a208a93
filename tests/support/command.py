"""The ``qknorm`` command as a user runs it: another process, its own standard streams."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import qknorm
from qknorm.cli import main

SMALL = (
    "model.d_model=32",
    "model.d_ff=64",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.dropout=0.0",
    "model.attention_dropout=0.0",
    "model.ff_dropout=0.0",
    "subwords.operations=200",
    "training.learning_rate=0.01",
    "training.warmup_steps=5",
    "training.max_steps=40",
    "training.epoch_batches=20",
    "decoding.beam=2",
    "decoding.max_extra=5",
)
"""Settings with which a phrasebook of a few hundred pairs trains in two seconds."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def environment(folder: Path) -> dict[str, str]:
    """One thread, the package under test, and a cache of its own."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(qknorm.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
        "QKNORM_CACHE": str(folder / "cache"),
    }


def run_command(folder: Path, *arguments: object, stdin: bytes = b"") -> Done:
    """Run ``qknorm`` with these arguments in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "qknorm", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=folder,
        env=environment(folder),
        timeout=120,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


class Command:
    """``qknorm`` in this process: quicker, for what needs no process of its own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("QKNORM_CACHE", str(folder / "cache"))
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Done:
        self.monkeypatch.setattr(sys, "argv", ["qknorm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)


def small() -> list[str]:
    return [word for setting in SMALL for word in ("--set", setting)]
