"""The parameter trees that the optimizers are measured on.

An entry of `TREES` makes a tree of shapes, `tree_of` finds it by name, and `fill` turns such a tree into arrays.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def large() -> Any:
    """8 leaves of 4M parameters: memory bandwidth and nothing else."""
    return {f"w{i}": (2048, 2048) for i in range(8)}


def norm(width: int) -> Any:
    return {"scale": (width,), "bias": (width,)}


def dense(inputs: int, outputs: int) -> Any:
    return {"w": (inputs, outputs), "b": (outputs,)}


def gpt2(layers: int = 12, width: int = 256, rows: int = 8192, positions: int = 1024) -> Any:
    """A GPT-2-like language model: the common mixture of large and small leaves."""
    block = {
        "norm1": norm(width),
        "qkv": dense(width, 3 * width),
        "out": dense(width, width),
        "norm2": norm(width),
        "up": dense(width, 4 * width),
        "down": dense(4 * width, width),
    }
    blocks = {f"block{i}": block for i in range(layers)}
    return {"wte": (rows, width), "wpe": (positions, width), **blocks, "norm": norm(width)}


def small(leaves: int = 1000) -> Any:
    """1,000 leaves of 10 shapes: the cost of a leaf and nothing else."""
    shapes = [(), (3,), (16,), (64,), (128,), (8, 8), (16, 16), (5, 7), (32, 4), (2, 3, 4)]
    return [shapes[i % len(shapes)] for i in range(leaves)]


def resnet50() -> Any:
    """A ResNet-50: 161 leaves, of which two thirds are the vectors of batch normalization."""

    def convolution(size: int, inputs: int, outputs: int) -> Any:
        return {"w": (size, size, inputs, outputs), "norm": norm(outputs)}

    tree: dict[str, Any] = {"stem": convolution(7, 3, 64)}
    inputs = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for i in range(blocks):
            block = {
                "reduce": convolution(1, inputs, width),
                "spatial": convolution(3, width, width),
                "expand": convolution(1, width, 4 * width),
            }
            if i == 0:
                block["shortcut"] = convolution(1, inputs, 4 * width)
            tree[f"stage{stage}_block{i}"] = block
            inputs = 4 * width
    return {**tree, "head": dense(inputs, 1000)}


def moe(layers: int = 4, experts: int = 8, width: int = 256) -> Any:
    """A mixture of experts whose layers and experts are stacked: few leaves of three and four axes."""
    return {
        "embedding": (8192, width),
        "attention": {"qkv": (layers, width, 3 * width), "out": (layers, width, width)},
        "router": (layers, width, experts),
        "experts": {"up": (layers, experts, width, 4 * width), "down": (layers, experts, 4 * width, width)},
        "norms": norm(width),
    }


def blocks(millions: int = 16) -> Any:
    """So many times 2**20 parameters, in leaves of at most 2048 x 2048: how a step grows with parameters."""
    whole, rest = divmod(millions, 4)
    return [(2048, 2048)] * whole + [(512 * rest, 2048)] * bool(rest)


def tiny() -> Any:
    """Two leaves. Warms the machinery up before anything is timed, and serves as a smoke test."""
    return {"w": (8, 4), "b": (4,)}


TREES = {tree.__name__: tree for tree in (large, gpt2, small, resnet50, moe, tiny)}
SIZED = {tree.__name__: tree for tree in (small, blocks)}


def tree_of(name: str) -> Any:
    """The shapes of a tree of `TREES`, or as ``small:300`` of one of `SIZED` in another size."""
    name, _, size = name.partition(":")
    return SIZED[name](int(size)) if size else TREES[name]()


def is_shape(node: Any) -> bool:
    return isinstance(node, tuple)


def shapes_of(tree: Any) -> list[tuple[int, ...]]:
    return jax.tree.leaves(tree, is_leaf=is_shape)


def fill(shapes: Any, seed: int) -> Any:
    """Standard normal float32 NumPy arrays of these shapes, the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda shape: np.asarray(rng.standard_normal(shape, np.float32)), shapes, is_leaf=is_shape)
