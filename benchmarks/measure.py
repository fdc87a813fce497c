"""Measures the contenders side by side.

Every round measures each contender once, the first one last in every other round, and the ratio that is reported is the
median of the rounds' own ratios: what slows the machine down for a while slows down both.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.contenders import Program
from benchmarks.trees import fill, tiny

COLD = ("trace", "lower", "trace+lower", "compile")
MEMORY = ("temporaries", "peak")
COLUMNS = (*COLD, "step", "eager", *MEMORY)

# Contenders that end further apart than this share of the way that the parameters went do not compute the same thing.
TOLERANCE = 0.05


class Settings(NamedTuple):
    """How much is measured.

    Attributes:
      columns: The columns wanted, some of `COLUMNS`.
      repeats: Cold starts and blocks of eager steps; a compiled step, the cheapest to repeat, gets four times as many.
      steps: Timed steps in a block; `warmup` more go before them.
      warmup: Untimed steps at the head of a block.
    """

    columns: tuple[str, ...] = COLUMNS
    repeats: int = 3
    steps: int = 5
    warmup: int = 2


class Case(NamedTuple):
    """What was measured for one rule on one tree.

    Attributes:
      samples: By column and contender, one value a round, in seconds or bytes.
      steps: Steps that every contender took.
      difference: The largest difference between final parameters of optchain and of a peer, in learning rates.
    """

    samples: dict[str, dict[str, list[float]]]
    steps: int
    difference: float


class Disagreement(Exception):
    """Two contenders computed different things, so that comparing their speed means nothing."""


def measure(shapes: Any, programs: Mapping[str, Program], learning_rate: float, settings: Settings) -> Case:
    """Measures the programs on one tree.

    Args:
      shapes: The tree of shapes.
      programs: The contenders by name.
      learning_rate: The unit of the reported difference.
      settings: What to measure and how often.

    Returns:
      The samples.

    Raises:
      Disagreement: If the contenders end with different parameters.
    """
    start = fill(shapes, seed=0)
    grads = device(fill(shapes, seed=1))
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    warm_up(programs)
    compiled = cold_starts(start, grads, programs, settings, samples)
    if "eager" in settings.columns:
        eager_steps(start, grads, programs, settings, samples)
    final, steps = compiled_steps(start, grads, programs, compiled, settings, samples)

    difference = max_difference(start, final) / learning_rate
    return Case({column: dict(samples[column]) for column in settings.columns}, steps, difference)


def device(tree: Any) -> Any:
    """Fresh arrays on the device, sharing no memory with `tree`, so that they can be donated."""
    return jax.tree.map(jax.numpy.array, tree)


def alternate(names: Mapping[str, Any], rounds: int) -> Iterator[str]:
    """Each name once a round, in turned order in every other round."""
    for i in range(rounds):
        yield from reversed(names) if i % 2 else names


def warm_up(programs: Mapping[str, Program]) -> None:
    """Imports and starts all that a first compilation needs."""
    for program in programs.values():
        params = device(fill(tiny(), seed=0))
        jax.block_until_ready(jax.jit(program.step)(params, program.init(params), params))


def cold_starts(start, grads, programs, settings, samples) -> dict[str, Any]:
    """From a step to its executable with every cache empty; returns the executables."""
    rounds = settings.repeats if set(COLD) & set(settings.columns) else 1
    executables: dict[str, Any] = {}
    for name in alternate(programs, rounds):
        params = device(start)
        state = jax.block_until_ready(programs[name].init(params))
        jitted = jax.jit(programs[name].step, donate_argnums=(0, 1))
        jax.clear_caches()
        with no_garbage():
            begin = time.perf_counter()
            traced = jitted.trace(params, state, grads)
            after_trace = time.perf_counter()
            lowered = traced.lower()
            after_lower = time.perf_counter()
        samples["trace"][name].append(after_trace - begin)
        samples["lower"][name].append(after_lower - after_trace)
        samples["trace+lower"][name].append(after_lower - begin)
        if name not in executables or "compile" in settings.columns:
            with no_garbage():
                begin = time.perf_counter()
                executables[name] = lowered.compile()
                samples["compile"][name].append(time.perf_counter() - begin)

    for name, executable in executables.items():
        memory = executable.memory_analysis()
        if memory is None:  # a backend that does not tell
            continue
        temporaries = memory.temp_size_in_bytes
        held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        samples["temporaries"][name].append(temporaries)
        samples["peak"][name].append(held + temporaries)
    return executables


def eager_steps(start, grads, programs, settings, samples) -> None:
    """``update`` as Python calls it, warm."""
    params = device(start)
    eager = {name: program for name, program in programs.items() if program.update}
    calls = {name: lambda _, state, call=program.update: call(grads, state, params) for name, program in eager.items()}
    carries = {name: (None, program.init(params)) for name, program in eager.items()}
    run_blocks(calls, carries, settings.repeats, settings, samples["eager"])


def compiled_steps(start, grads, programs, compiled, settings, samples) -> tuple[dict[str, Any], int]:
    """The executables fed with their own results, all but grads donated; returns final parameters and steps taken."""
    calls = {name: lambda params, state, call=compiled[name]: call(params, state, grads) for name in programs}
    carries = {}
    for name, program in programs.items():
        params = device(start)
        carries[name] = (params, program.init(params))
    blocks = 4 * settings.repeats if "step" in settings.columns else 1
    run_blocks(calls, carries, blocks, settings, samples["step"])
    return {name: params for name, (params, _) in carries.items()}, blocks * (settings.warmup + settings.steps)


def run_blocks(calls, carries, rounds, settings, samples) -> None:
    """Blocks of calls in alternation, each call fed with the last one's results; `carries` ends with the final ones."""
    for name in alternate(calls, rounds):
        seconds = []
        carry = carries.pop(name)  # no second reference: what the call does not keep is freed
        with no_garbage():
            for _ in range(settings.warmup + settings.steps):
                begin = time.perf_counter()
                carry = jax.block_until_ready(calls[name](*carry))
                seconds.append(time.perf_counter() - begin)
        samples[name].append(statistics.median(seconds[settings.warmup :]))
        carries[name] = carry


class no_garbage:
    """Collects garbage on entry and none until exit: the collector takes its time from whoever happens to run."""

    def __enter__(self):
        gc.collect()
        gc.disable()

    def __exit__(self, *_):
        gc.enable()


def max_difference(start: Any, final: Mapping[str, Any]) -> float:
    """The largest difference between the first contender's final parameters and another's.

    Args:
      start: The parameters that all started from.
      final: Final parameters by contender.

    Raises:
      Disagreement: If a difference is more than `TOLERANCE` of the farthest way that a parameter went, or not a number.
    """
    (first, ours), *peers = final.items()
    way = max_distance(start, ours)
    worst = 0.0
    for name, theirs in peers:
        difference = max_distance(ours, theirs)
        if not difference <= TOLERANCE * way:  # also if either is NaN
            raise Disagreement(
                f"{first} and {name} do not compute the same: after equal steps from equal parameters they differ "
                f"by {difference:.3g}, where the parameters went {way:.3g}. Their times cannot be compared."
            )
        worst = max(worst, difference)
    return worst


def max_distance(a: Any, b: Any) -> float:
    distances = jax.tree.map(lambda x, y: np.abs(np.asarray(x) - np.asarray(y)).max(initial=0.0), a, b)
    return float(np.max(jax.tree.leaves(distances)))
