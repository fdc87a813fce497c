"""What is measured of one contender, for one rule on one tree.

Each of the three measurements is a class that prepares, measures a `round` as often as it is asked to, and tells what
else is known at the end. Each lives in a process of its own (`worker`), one for each contender: what a step costs
depends on the state of the allocator that earlier work left behind. `cases` lets the contenders take turns.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import roofline
from benchmarks.contenders import Program
from benchmarks.trees import fill, tiny

COLD = ("trace", "lower", "trace+lower", "compile")
EAGER = ("eager",)
MEMORY = ("temporaries", "peak", "passes", "roofline")
COLUMNS = (*COLD, "step", *EAGER, *MEMORY)


class Settings(NamedTuple):
    """How much is measured.

    Attributes:
      columns: The columns wanted.
      repeats: Cold starts and blocks of eager steps; a compiled step, the cheapest to repeat, gets four times as many.
      steps: Timed steps in a block; `warmup` more go before them.
      warmup: Untimed steps at the head of a block.
    """

    columns: tuple[str, ...] = COLUMNS
    repeats: int = 2
    steps: int = 5
    warmup: int = 2


def device(tree: Any) -> Any:
    """Fresh arrays on the device, sharing no memory with `tree`, so that they can be donated."""
    return jax.tree.map(jax.numpy.array, tree)


class ColdStarts:
    """From a step to its executable with every cache empty."""

    def __init__(self, tree: Any, program: Program, settings: Settings):
        self.program, self.compiles = program, "compile" in settings.columns
        params = device(fill(tiny(), seed=0))  # imports and starts all that a first compilation needs
        jax.block_until_ready(jax.jit(program.step)(params, program.init(params), params))
        self.params, self.grads = device(fill(tree, seed=0)), device(fill(tree, seed=1))
        self.state = jax.block_until_ready(program.init(self.params))

    def round(self) -> dict[str, float]:
        jitted = jax.jit(self.program.step, donate_argnums=(0, 1))
        jax.clear_caches()
        found = {}
        with no_garbage():
            begin = time.perf_counter()
            traced = jitted.trace(self.params, self.state, self.grads)
            after_trace = time.perf_counter()
            lowered = traced.lower()
            after_lower = time.perf_counter()
            if self.compiles:
                lowered.compile()
                found["compile"] = time.perf_counter() - after_lower
        found |= {"trace": after_trace - begin, "lower": after_lower - after_trace, "trace+lower": after_lower - begin}
        return found

    def finish(self) -> dict[str, Any]:
        return {}


class EagerSteps:
    """``update`` as Python calls it, warm; of a contender that nobody compiles, its whole step."""

    def __init__(self, tree: Any, program: Any, settings: Settings):
        self.settings = settings
        if isinstance(program, Program):
            params, grads = device(fill(tree, seed=0)), device(fill(tree, seed=1))
            self.call = lambda _, state: program.update(grads, state, params)
            self.carry = None, program.init(params)
        else:
            self.call, self.carry = program.start(fill(tree, seed=0), fill(tree, seed=1))

    def round(self) -> dict[str, float]:
        seconds, self.carry = block(self.call, self.carry, self.settings)
        return {"eager": seconds}

    def finish(self) -> dict[str, Any]:
        return {}


class CompiledSteps:
    """An executable fed with its own results, all but the gradients donated."""

    def __init__(self, tree: Any, program: Any, settings: Settings, final: str | None = None):
        """`final` names the file that the final parameters go to, if they are wanted."""
        self.settings, self.final = settings, final
        self.known: dict[str, Any] = {}
        if not isinstance(program, Program):
            self.call, self.carry = program.start(fill(tree, seed=0), fill(tree, seed=1))
            return
        params, grads = device(fill(tree, seed=0)), device(fill(tree, seed=1))
        state = jax.block_until_ready(program.init(params))
        compiled = jax.jit(program.step, donate_argnums=(0, 1)).lower(params, state, grads).compile()
        self.call = lambda params, state: compiled(params, state, grads)
        self.carry = params, state
        self.known["moved"] = roofline.program_bytes(compiled.as_text())
        memory = compiled.memory_analysis()
        if memory is not None:  # some backends do not tell
            held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
            self.known["temporaries"] = memory.temp_size_in_bytes
            self.known["peak"] = held + memory.temp_size_in_bytes

    def round(self) -> dict[str, float]:
        carry = self.__dict__.pop("carry")  # no second reference: what the call does not keep is freed
        seconds, self.carry = block(self.call, carry, self.settings)
        return {"step": seconds}

    def finish(self) -> dict[str, Any]:
        if self.final:
            np.savez(self.final, *map(array, jax.tree.leaves(self.carry[0])))
        return self.known | {"bandwidth": roofline.bandwidth()}


def block(call: Any, carry: tuple, settings: Settings) -> tuple[float, tuple]:
    """The median time of a few calls, each fed with the last one's results, and the last results."""
    seconds = []
    with no_garbage():
        for _ in range(settings.warmup + settings.steps):
            begin = time.perf_counter()
            carry = jax.block_until_ready(call(*carry))
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[settings.warmup :]), carry


class no_garbage:
    """Collects garbage on entry and none until exit: the collector takes its time from whoever happens to run."""

    def __enter__(self):
        gc.collect()
        gc.disable()

    def __exit__(self, *_):
        gc.enable()


def array(x: Any) -> np.ndarray:
    """A NumPy array of a leaf, also of one of PyTorch that has a gradient."""
    return np.asarray(x.detach() if hasattr(x, "detach") else x)
