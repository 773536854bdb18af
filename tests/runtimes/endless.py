"""A run that goes on until it is stopped: prints the worker processes' numbers, then plays rounds."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.problem import federation
from undrift.algorithms import create
from undrift.core.loop import Loop
from undrift.runtimes.processes import Processes

if __name__ == "__main__":
    job = federation()
    with Processes(job, 2) as runtime:
        loop = Loop(job, create("scaffold"), runtime, 3)
        snapshot = loop.play(loop.start()).snapshot
        print(*(handle.process.pid for handle in runtime._handles.values()), flush=True)
        while True:
            snapshot = loop.play(snapshot).snapshot
