"""What ``python -m optchain`` prints: versions, devices, and one step of clip and SGD beside NumPy."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import optchain
from optchain.core.chain import chain
from optchain.core.pair import GradientTransformation
from optchain.optimizers.sgd import sgd
from optchain.transforms.clipping import clip_by_global_norm
from optchain.tree.updates import apply_updates

PARAMS = (1.0, 1.0)
GRADIENT = (3.0, 4.0)
MAX_NORM = 1.0
LEARNING_RATE = 0.1
TOLERANCE = 1e-6


class Value(NamedTuple):
    """One value of a step and what it should be.

    Attributes:
      name: What the value is.
      value: What optchain computed.
      numpy: What NumPy gives in float64.
    """

    name: str
    value: tuple[float, ...]
    numpy: tuple[float, ...]

    @property
    def error(self) -> float:
        """The largest difference of an entry; NaN if an entry is."""
        return float(np.max(np.abs(np.subtract(self.value, self.numpy))))

    @property
    def ok(self) -> bool:
        return self.error <= TOLERANCE

    def report(self) -> dict[str, Any]:
        """The value as JSON has it."""
        return {**self._asdict(), "error": self.error, "ok": self.ok}


class Order(NamedTuple):
    """A chain and the values of its step, in the order in which they arise."""

    chain: str
    values: tuple[Value, ...]


def environment() -> dict[str, Any]:
    """The versions in use, the backend and its devices; flax is None where it is not installed."""
    try:
        flax = metadata.version("flax")  # read, not imported: optchain does not depend on it
    except metadata.PackageNotFoundError:
        flax = None
    return {
        "versions": {
            "optchain": optchain.__version__,
            "python": platform.python_version(),
            "jax": jax.__version__,
            "jaxlib": metadata.version("jaxlib"),
            "numpy": np.__version__,
            "flax": flax,
        },
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
    }


def check() -> tuple[Order, Order]:
    """One step of clipping and of SGD in both orders, each value beside NumPy's."""
    params, gradient = np.array(PARAMS), np.array(GRADIENT)

    def clipped(u):
        return u * min(1.0, MAX_NORM / np.sqrt(np.sum(u**2)))

    def descended(u):
        return -LEARNING_RATE * u

    clip_first = clipped(gradient), descended(clipped(gradient))
    sgd_first = descended(gradient), clipped(descended(gradient))
    clip, descend = clip_by_global_norm(MAX_NORM), sgd(LEARNING_RATE)
    return (
        _step(chain(clip, descend), (*clip_first, clip_first[-1], params + clip_first[-1])),
        _step(chain(descend, clip), (*sgd_first, sgd_first[-1], params + sgd_first[-1])),
    )


def _step(tx: GradientTransformation, expected: tuple[np.ndarray, ...]) -> Order:
    """A step link by link, then of the compiled chain, then the new parameters."""
    params, gradient = jnp.array(PARAMS), jnp.array(GRADIENT)
    names, values = [], [gradient]
    for link in tx.links:
        names.append(f"after {link.name}")
        values.append(link.update(values[-1], link.init(params), params)[0])
    updates, _ = jax.jit(tx.update)(gradient, tx.init(params), params)
    names += ["the chain, compiled", "new parameters"]
    values += [updates, apply_updates(params, updates)]
    rows = zip(names, values[1:], expected, strict=True)
    return Order(repr(tx), tuple(Value(name, tuple(map(float, x)), tuple(map(float, y))) for name, x, y in rows))


def report() -> dict[str, Any]:
    """All of it as plain data: ``environment()``, and ``check``, whose ``ok`` says whether every value is right."""
    orders = check()
    return {
        **environment(),
        "check": {
            "params": PARAMS,
            "gradient": GRADIENT,
            "tolerance": TOLERANCE,
            "orders": [{"chain": o.chain, "values": [value.report() for value in o.values]} for o in orders],
            "ok": all(value.ok for o in orders for value in o.values),
        },
    }


def text(report: dict[str, Any]) -> str:
    """The report for a terminal."""
    result = report["check"]
    lines = [f"{name:9} {version}" for name, version in report["versions"].items() if version]
    lines += [f"{'backend':9} {report['backend']}", f"{'devices':9} {', '.join(report['devices'])}", ""]
    lines += [f"parameters {_show(result['params'])}, gradient {_show(result['gradient'])}"]
    for order in result["orders"]:
        lines += ["", order["chain"], f"  {'':25} {'optchain':18} {'NumPy':18} off by"]
        for row in order["values"]:
            verdict = "OK" if row["ok"] else "WRONG"
            lines += [
                f"  {row['name']:25} {_show(row['value']):18} {_show(row['numpy']):18} {row['error']:<7.0e}  {verdict}"
            ]
    first, second = (_show(order["values"][-1]["value"]) for order in result["orders"])
    lines += ["", f"The order counts: clipping first gives {first}, SGD first {second}."]
    if not result["ok"]:
        lines += [f"Values are off by more than {result['tolerance']:.0e}."]
    return "\n".join(lines)


def _show(values: tuple[float, ...]) -> str:
    return f"[{', '.join(f'{x:.6g}' for x in values)}]"
