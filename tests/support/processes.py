"""Several processes that work together on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from support.command import Done, environment


def run_together(folder: Path, count: int, *arguments: object) -> list[Done]:
    """Run Python with these arguments in so many processes, as torchrun would; how each ended, by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=together(folder)
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(count)
    ]
    ended = []
    try:
        for process in started:
            out, err = process.communicate(timeout=120)
            ended.append(Done(process.returncode, out.decode(), err.decode()))
    finally:
        for process in started:
            process.kill()
    return ended


def torchrun(folder: Path, count: int, *arguments: object) -> subprocess.Popen[bytes]:
    """Start ``torchrun … -m qknorm`` with these arguments."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m", "qknorm"]
    return subprocess.Popen(
        [sys.executable, *launcher, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=together(folder),
    )


def process_of(launcher: int, rank: int) -> int:
    """The process id of a rank, among the children of a running torchrun."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"torchrun has no child with RANK={rank}")


def together(folder: Path) -> dict[str, str]:
    return {**environment(folder), "GLOO_SOCKET_IFNAME": "lo"}
