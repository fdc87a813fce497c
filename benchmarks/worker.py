"""A measurement of one contender in a process of its own.

`Worker` starts ``python -m benchmarks.worker``, which reads a request, prepares, says whether it has something to
measure, and then answers one line for each line that it reads, all in JSON. The process that asks never starts a
backend of JAX, so that workers have the device to themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

from benchmarks import contenders, measure, report
from benchmarks.rules import MissingContender
from benchmarks.trees import tree_of

ROOT = Path(__file__).resolve().parents[1]
JOBS = {"cold": measure.ColdStarts, "eager": measure.EagerSteps, "step": measure.CompiledSteps}


class WorkerFailed(Exception):
    """A measurement did not end with a result; the message says why."""


class Worker:
    """The near end of a worker process. It prepares from the moment on that this is made."""

    def __init__(self, job: str, share: float = 1.0, **arguments: Any):
        """`share` is the part of a GPU's memory that JAX may reserve there; see `start` for the rest."""
        self.what = " ".join([job, *(str(arguments[key]) for key in ("rule", "tree", "name") if key in arguments)])
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in __exit__)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            cwd=ROOT,
            env={**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.75 * share:.3f}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.send({"job": job, **arguments})

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def send(self, message: Any) -> None:
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `receive` says what happened

    def receive(self) -> Any:
        """The next answer.

        Raises:
          WorkerFailed: If there is none, because the process ended.
        """
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.errors.seek(0)
            raise WorkerFailed(f"measuring {self.what} ended with exit status {status}:\n{self.errors.read().strip()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    def ask(self, message: str) -> Any:
        self.send(message)
        return self.receive()


def machine() -> dict[str, Any]:
    with Worker("machine") as worker:
        return worker.receive()


def start(job: str, tree: str, rule: str, name: str, settings: dict[str, Any], **more: Any) -> Any:
    """The measurement that a request asks for; None if the contender has no part in it."""
    shapes = tree_of(tree)
    program = contenders.CONTENDERS[name](rule, shapes)
    compiled = isinstance(program, contenders.Program)
    if program is None or (job == "cold" and not compiled) or (job == "eager" and compiled and not program.update):
        return None
    return JOBS[job](shapes, program, measure.Settings(**settings), **more)


def main() -> None:
    """Says whether there is something to measure, and then answers ``round`` and ``finish``."""

    def say(answer: Any) -> None:
        print(json.dumps(answer), flush=True)

    jax.config.update("jax_enable_compilation_cache", False)  # a compilation read from disk is none
    request = json.loads(sys.stdin.readline())
    if request["job"] == "machine":
        say(report.machine())
        return
    try:
        measurement = start(**request)
    except MissingContender as error:
        say({"error": str(error)})
        return
    say(measurement is not None)
    for line in sys.stdin:
        say(getattr(measurement, json.loads(line))())


if __name__ == "__main__":
    main()
