"""What long work tells, with the time where it is a log."""

import io
import subprocess
import sys
import time

import pytest

from qknorm import clock, progress
from qknorm.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (53.9, "0:53"), (724, "12:04"), (3599.9, "59:59"), (3723, "1:02:03")]
)
def test_times_are_shown_as_on_a_clock(seconds, shown):
    assert clock.clock(seconds) == shown


def test_every_line_of_a_log_begins_with_the_time(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    told = Progress(since=time.monotonic() - 65)
    told.note("epoch 1: [loss] 3\n  and more")
    told.warn("slow")
    with told.bar("epoch 2", 10) as bar:
        bar.to(3, "loss 2")
    assert capsys.readouterr().err.splitlines() == [
        "  1:05 epoch 1: [loss] 3",
        "  1:05   and more",
        "  1:05 warning: slow",
        "  1:05 epoch 2: 3 of 10 loss 2",
    ]


def test_other_logs_have_no_times(capsys):
    Progress().note("epoch 1: loss 3")
    assert capsys.readouterr().err == "epoch 1: loss 3\n"


def test_a_terminal_shows_no_times(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    Progress(since=time.monotonic() - 65).note("epoch 1: loss 3")
    assert "epoch 1: loss 3" in sys.stderr.getvalue() and "1:05" not in sys.stderr.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells when a process began")
def test_a_process_began_before_its_imports():
    code = "import time; time.sleep(0.5); from qknorm import clock; print(clock.process_start())"
    before = time.monotonic()
    began = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert before - 0.02 <= began < time.monotonic() - 0.5


def test_where_no_one_tells_a_process_began_with_its_imports(monkeypatch):
    monkeypatch.setattr(clock, "Path", lambda name: io.StringIO())  # nothing that can be read as text
    monkeypatch.delattr(clock.time, "CLOCK_BOOTTIME", raising=False)
    assert clock.process_start() == clock._IMPORTED
