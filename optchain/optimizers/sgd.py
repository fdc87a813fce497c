"""Stochastic gradient descent, with and without momentum."""

from __future__ import annotations

from typing import Any

from optchain.core.basic import identity
from optchain.core.chain import chain
from optchain.core.pair import GradientTransformationExtraArgs, Numeric, ScalarOrSchedule
from optchain.core.value import transform
from optchain.transforms.accumulation import trace
from optchain.transforms.scaling import scale_by_learning_rate


@transform
def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: Numeric | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Steps against the gradient, or against its running sum.

    ``u <- -learning_rate * g``; with momentum ``m <- g + momentum * m`` and ``u <- -learning_rate * m``, or
    ``u <- -learning_rate * (g + momentum * m)`` in Nesterov's form.

    Args:
      learning_rate: A scalar, or a schedule from the number of updates made before to a scalar.
      momentum: The decay of the running sum, a scalar usually in [0, 1); None for no momentum and no state.
      nesterov: Whether to use Nesterov's form; it needs `momentum`.
      accumulator_dtype: What the running sum is stored in; None for the dtype of the parameters.

    Returns:
      A pair whose state is that of `trace` (or `identity`) and of `scale_by_learning_rate`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.sgd(0.5)
      >>> tx.update(jnp.array([2.0]), tx.init(jnp.zeros(1)))[0].tolist()
      [-1.0]

    References:
      Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013.

    Notes:
      The learning rate multiplies the sum at each step, as in PyTorch; it does not enter the sum.
    """
    rule = identity() if momentum is None else trace(momentum, nesterov, accumulator_dtype)
    return chain(rule, scale_by_learning_rate(learning_rate))
