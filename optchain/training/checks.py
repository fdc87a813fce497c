"""What `compile_train` refuses, in plain English."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from optchain.core import errors
from optchain.core.pair import GradientTransformation

NAME = "compile_train"
METRICS = ("grad_norm", "update_norm")


def check_call(loss_fn: Any, tx: Any, metrics: Any) -> None:
    """Refuses arguments of `compile_train` that could not train."""
    if not callable(loss_fn):
        raise TypeError(f"{NAME}: loss_fn is {errors.describe(loss_fn)}, not a function of (params, *batch).")
    errors.check_pair(NAME, "tx", tx)
    if isinstance(tx, GradientTransformation) and tx.sign == 1:
        raise ValueError(
            f"{NAME}: {tx!r} keeps the sign of the gradient, so its steps would climb the loss. "
            "End the chain with scale_by_learning_rate(...), which flips the sign, or use an optimizer, as sgd(...)."
        )
    if not isinstance(metrics, (tuple, list)) or any(name not in METRICS for name in metrics):
        raise ValueError(
            f"{NAME}: metrics={metrics!r} is not a tuple of known names, which are {', '.join(map(repr, METRICS))}. "
            "The loss is always reported, and so is aux with has_aux=True."
        )


def check_params(params: Any) -> None:
    """Refuses parameters that have no gradient."""
    for path, x in errors.paths(params):
        if x is None or errors.is_inexact(x):
            continue
        if hasattr(x, "dtype"):
            fix = "leave it out of params (None in its place)"
        else:
            fix = "keep only arrays in params, for example equinox.filter(model, equinox.is_inexact_array)"
        raise TypeError(
            f"{NAME}: the parameter {errors.at(path)} is {errors.describe(x)}, which has no gradient. "
            f"To hold it fixed, {fix} and let loss_fn close over it, or pass it in the batch."
        )


def not_a_state(state: Any) -> TypeError:
    """For a step that is called with something else than a `TrainState`."""
    return TypeError(
        f"{NAME}: the first argument of a step is {_shown(state)}, not a TrainState. "
        "Make one with step.init(params), then pass what the last step returned."
    )


def spent_state() -> RuntimeError:
    """For a state whose memory an earlier step reused."""
    return RuntimeError(
        f"{NAME}: this state was given to a step before, which reused its memory. "
        "Go on with the state that the step returned, or use compile_train(..., donate=False)."
    )


def split_loss(out: Any, has_aux: bool) -> tuple[Any, Any]:
    """``(loss, aux)`` of what the loss function returned, aux being None without `has_aux`."""
    if has_aux:
        if not (isinstance(out, tuple) and len(out) == 2):
            raise TypeError(f"{NAME}: with has_aux=True loss_fn must return (loss, aux); it returned {_shown(out)}.")
        loss, aux = out
    else:
        if isinstance(out, tuple):
            raise TypeError(
                f"{NAME}: loss_fn returned {_shown(out)} where a scalar was expected; "
                "pass has_aux=True if it returns (loss, aux)."
            )
        loss, aux = out, None
    if not (errors.is_number(loss) or hasattr(loss, "dtype")):
        raise TypeError(f"{NAME}: loss_fn must return a scalar array; it returned {_shown(loss)}.")
    if jnp.shape(loss):
        raise TypeError(
            f"{NAME}: the loss must be a scalar, not {errors.describe(loss)}; reduce it, for example by jnp.mean(loss)."
        )
    if not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise TypeError(
            f"{NAME}: the loss must be a real floating-point number, not {errors.describe(loss)}; "
            "take its real part or magnitude if it is complex, or cast it with loss.astype(jnp.float32)."
        )
    return loss, aux


def _shown(value: Any) -> str:
    return f"a tuple of {len(value)}" if type(value) is tuple else errors.describe(value)
