"""Train what is missing: one row after another here, or several at a time in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from qknorm.config import dump_recipe
from qknorm.data import write_atomic
from qknorm.errors import LostWorkerError, UserError
from qknorm.paper.records import ASKED
from qknorm.paper.tasks import FAILED, FINISHED, TRAINING, Task
from qknorm.progress import Progress
from qknorm.training import train
from qknorm.training.members import release

POLL_SECONDS = 0.2
INTERRUPTED = 130

Report = Callable[[Task], None]
"""Told whenever a task's state has changed."""


def train_in_turn(tasks: Sequence[Task], device: str | None, progress: Progress, report: Report) -> bool:
    """Train one task after another; False if asked to stop. What fails is noted, and the next one begun."""
    for task in tasks:
        task.state, stop = TRAINING, False
        report(task)
        try:
            ended = train(task.recipe, task.run.path, device=device, progress=progress)
            if ended.interrupted:
                return False
            task.state, stop = FINISHED, ended.asked_to_stop
        except LostWorkerError:
            raise
        except UserError as error:
            task.state, task.why = FAILED, str(error)
        except Exception as error:  # whatever it is, it is no reason not to train the others
            traceback.print_exc()
            task.state = FAILED
            task.why = (
                f"It ended with {type(error).__name__}, which the output of this command tells in full."
            )
        report(task)
        if stop:
            return False
        release()
    return True


def train_side_by_side(tasks: Sequence[Task], jobs: int, device: str | None, report: Report) -> bool:
    """Train ``jobs`` tasks at a time, each by ``qknorm train`` with its log in the run folder.

    Ctrl-C and SIGTERM are passed on, every process saves, and False comes back.
    """
    waiting, running = list(tasks), dict[subprocess.Popen[bytes], Task]()
    stopping, told = False, set[subprocess.Popen[bytes]]()

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while running or (waiting and not stopping):
            while waiting and len(running) < jobs and not stopping:
                task = waiting.pop(0)
                task.state = TRAINING
                running[_start(task, device)] = task
                report(task)
            for process in set(running) - told if stopping else ():
                process.send_signal(signal.SIGTERM)  # once is enough
                told.add(process)
            for process in [process for process in running if process.poll() is not None]:
                task = running.pop(process)
                if process.returncode == INTERRUPTED or (stopping and process.returncode):
                    stopping = True
                    continue
                task.state = FINISHED if process.returncode == 0 else FAILED
                task.why = "" if process.returncode == 0 else _last_words(task)
                report(task)
            time.sleep(POLL_SECONDS)
    finally:
        for process in running:
            process.terminate()
        for number, handler in before.items():
            signal.signal(number, handler)
    return not stopping


def _start(task: Task, device: str | None) -> subprocess.Popen[bytes]:
    folder = task.run.path
    folder.mkdir(parents=True, exist_ok=True)
    asked = folder / ASKED
    write_atomic(asked, dump_recipe(task.recipe))
    words = [sys.executable, "-m", "qknorm", "train", str(asked), "--run", str(folder)]
    words += [] if device is None else ["--device", device]
    with _log(task).open("ab") as log:
        # A session of its own: Ctrl-C in a terminal reaches this process, which passes it on once.
        return subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)


def _log(task: Task) -> Path:
    return task.run.path / "train.log"


def _last_words(task: Task) -> str:
    """What a training said before it failed."""
    lines = _log(task).read_text(encoding="utf-8", errors="replace").split("\n")
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if errors:
        return "\n".join(lines[errors[-1] :]).removeprefix("error: ").strip()
    return f"It ended without a word of why; see {_log(task)}."
