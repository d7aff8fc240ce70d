"""A backend as a child process, the way a launcher runs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import psutil

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = "4096"


class Backend:
    """``python -m backend serve …``; use as a context manager. `log` is what it wrote to stderr.

    Its KV cache has `BLOCKS` blocks, unless `options` say how many: the default, a GiB, would be a quarter of a million
    blocks of the tiny model, and making and zeroing them would take longer than all else.
    """

    def __init__(self, log: Path, *options: str) -> None:
        self._log = log
        self._file: IO[bytes] = log.open("wb")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "backend",
                "serve",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--threads",
                "1",
                *(() if "--kv-blocks" in options else ("--kv-blocks", BLOCKS)),
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=self._file,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise RuntimeError(f"the backend did not start:\n{self.log}")
        self.ready = json.loads(line)
        self.port: int = self.ready["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def engine(self) -> psutil.Process:
        (child,) = self.engines
        return child

    @property
    def engines(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)

    def __enter__(self) -> "Backend":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._file.close()
