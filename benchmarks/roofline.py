"""How near a compiled program is to what the memory allows.

An optimizer does a few operations on each number that it moves, so that its time is that of its memory traffic. Two
things are needed to say how near it comes: the traffic of the compiled program, `program_bytes`, and the bandwidth of
the memory, `bandwidth`.
"""

from __future__ import annotations

import math
import re
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp

# These move nothing: they name, view or order what is there.
FREE = frozenset(["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "after-all"])
SLICES = frozenset(["slice", "dynamic-slice", "gather"])  # read as much as they return, however large the operand is

HEADER = re.compile(r"^(ENTRY )?%([\w.-]+) \(.*\{$")
ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
NAME = re.compile(r"%([\w.-]+)")
CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%([\w.-]+)|branch_computations=\{([^}]*)\}"
)
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Instruction(NamedTuple):
    name: str
    size: int
    opcode: str
    operands: list[str]
    text: str
    root: bool

    @property
    def called(self) -> list[str]:
        return [name for one, many in CALLED.findall(self.text) for name in ([one] if one else NAME.findall(many))]


def program_bytes(text: str) -> int:
    """The bytes that a compiled program moves to and from memory.

    Each kernel reads each of its operands once and writes its results once. Of a conditional the cheaper branch runs,
    and a loop of unknown length runs once.

    Args:
      text: What ``compiled.as_text()`` returns.
    """
    computations, entry = parse(text)
    known: dict[str, int] = {}

    def run(name: str) -> int:
        if name not in known:
            sizes = {i.name: i.size for i in computations[name]}
            known[name] = sum(cost(i, sizes) for i in computations[name])
        return known[name]

    def cost(i: Instruction, sizes: dict[str, int]) -> int:
        if i.opcode in FREE or i.opcode.endswith("-done"):
            return 0
        if i.opcode in ("call", "async-start"):
            return sum(map(run, i.called))
        if i.opcode == "conditional":
            return min(map(run, i.called))
        if i.opcode == "while":
            trips = TRIPS.search(i.text)
            return sum(map(run, i.called)) * (int(trips[1]) if trips else 1)
        if i.opcode == "fusion":
            return fusion_bytes(computations[i.called[0]])
        if i.opcode in SLICES:
            return 2 * i.size
        if i.opcode == "dynamic-update-slice":
            return 2 * sizes[i.operands[1]]
        read = sum(sizes[name] for name in set(i.operands))
        return 2 * read if i.opcode.endswith("-start") else read + i.size

    return run(entry)


def fusion_bytes(body: list[Instruction]) -> int:
    """What one fused kernel reads and writes.

    A kernel makes only what its results need. So of each value a share counts: all of a result, of what is cut the size
    of the pieces, of any other operand as large a share as of what is made of it.
    """
    by_name = {i.name: i for i in body}
    cut: dict[str, float] = {}
    needed = {i.name: 1.0 for i in body if i.root}
    total = 0.0
    for i in reversed(body):  # operands stand before what is made of them
        share = min(1.0, needed.get(i.name, 0.0) + cut.get(i.name, 0.0))
        total += share * i.size * (i.opcode == "parameter")
        for position, name in enumerate(i.operands):
            if position == 0 and i.opcode in SLICES:
                cut[name] = cut.get(name, 0.0) + share * i.size / max(1, by_name[name].size)
            elif position > 0 or not in_place(i, by_name):
                needed[name] = max(needed.get(name, 0.0), 1.0 if i.opcode == "broadcast" else share)

    def written(i: Instruction) -> int:
        if i.opcode == "tuple":
            return sum(written(by_name[name]) for name in i.operands)
        if i.opcode == "bitcast":
            return written(by_name[i.operands[0]])
        return by_name[i.operands[1]].size if in_place(i, by_name) else i.size

    return round(total) + sum(written(i) for i in body if i.root)


def in_place(i: Instruction, by_name: dict[str, Instruction]) -> bool:
    """Whether an instruction writes a piece into an operand of the kernel, and nothing else of it."""
    return i.opcode == "dynamic-update-slice" and by_name[i.operands[0]].opcode == "parameter"


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The instructions of each computation of a module, and the name of the one that runs."""
    computations: dict[str, list[Instruction]] = {}
    entry, body = "", None
    for line in text.splitlines():
        if header := HEADER.match(line):
            body = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            body = None
        elif body is not None and " = " in line:
            body.append(instruction(line))
    return computations, entry


def instruction(line: str) -> Instruction:
    left, _, right = line.strip().partition(" = ")
    stop = closing(right, 0) if right.startswith("(") else right.index(" ")
    start = right.index("(", stop)
    end = closing(right, start)
    return Instruction(
        name=left.removeprefix("ROOT ").removeprefix("%"),
        size=size_of(right[:stop]),
        opcode=right[stop:start].strip(),
        operands=NAME.findall(right[start:end]),
        text=right[end:],
        root=left.startswith("ROOT "),
    )


def closing(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    raise ValueError(f"no closing bracket: {text}")


def size_of(shape: str) -> int:
    """The bytes of an array or of a tuple of arrays, as ``f32[8,4]{1,0}``."""
    total = 0
    for dtype, axes in ARRAY.findall(shape):
        bits = re.search(r"\d+", dtype)
        width = int(bits[0]) if bits else 8 * (dtype == "pred")
        total += math.prod(int(n) for n in axes.split(",") if n) * width
    return total // 8


def bandwidth(rows: int = 16_384, columns: int = 2048, groups: int = 6, calls: int = 4) -> float:
    """Bytes a second of ``a * x + y`` written over `y`: two reads and a write, as optimizers do; the best of several.

    Args:
      rows: Of `x` and `y`, float32. By default they are as large as the tree `large`, beyond any cache.
      columns: Of `x` and `y`.
      groups: How often the time is taken.
      calls: Calls in a group; the device waits for the host once a group.
    """
    triad = jax.jit(lambda a, x, y: a * x + y, donate_argnums=2)
    x, y = jnp.ones((rows, columns)), jnp.zeros((rows, columns))
    y = jax.block_until_ready(triad(1e-3, x, y))
    best = math.inf
    for _ in range(groups):
        begin = time.perf_counter()
        for _ in range(calls):
            y = triad(1e-3, x, y)
        jax.block_until_ready(y)
        best = min(best, (time.perf_counter() - begin) / calls)
    return 3 * x.nbytes / best
