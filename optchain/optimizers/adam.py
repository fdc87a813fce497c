"""Adam and AdamW."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from optchain.core.chain import chain
from optchain.core.leaves import Slot, leafwise, safe_increment
from optchain.core.masks import MaskTree
from optchain.core.pair import GradientTransformationExtraArgs, Numeric, ScalarOrSchedule
from optchain.core.value import transform
from optchain.transforms import moments
from optchain.transforms.scaling import scale_by_learning_rate
from optchain.transforms.weight_decay import add_decayed_weights


class ScaleByAdamState(NamedTuple):
    """The state of `scale_by_adam`.

    Attributes:
      count: int32 scalar, how many updates were made.
      mu: A tree like the parameters: the moving average of the updates.
      nu: A tree like the parameters, real: the moving average of their squared magnitudes.
    """

    count: jax.Array
    mu: Any
    nu: Any


def adam_rule(u, p, mu, nu, *, b1, b2, eps, eps_root, debias_mu, debias_u, debias_nu):
    """``debias_mu * mu / (sqrt(debias_nu * nu + eps_root) + eps)``, with Nesterov's mean if `debias_u` is given."""
    mu = moments.moving(mu, u, b1)
    nu = moments.moving(nu, moments.abs_sq(u), b2)
    mean = debias_mu * mu if debias_u is None else b1[0] * debias_mu * mu + b1[1] * debias_u * u
    return mean / (moments.safe_sqrt(debias_nu * nu + eps_root) + eps), mu, nu


@transform
def scale_by_adam(
    b1: Numeric = 0.9,
    b2: Numeric = 0.999,
    eps: Numeric = 1e-8,
    eps_root: Numeric = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    nu_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Divides a moving average of the updates by the root of a moving average of their squares.

    ``m <- b1 * m + (1 - b1) * g`` and ``v <- b2 * v + (1 - b2) * |g|**2``, then
    ``u <- m / (1 - b1**t) / (sqrt(v / (1 - b2**t) + eps_root) + eps)``, where ``t = 1`` at the first update. With
    Nesterov's look-ahead ``b1 * m / (1 - b1**(t + 1)) + (1 - b1) * g / (1 - b1**t)`` takes the place of
    ``m / (1 - b1**t)``.

    Args:
      b1: The decay rate of the average of the updates, a scalar in [0, 1).
      b2: The decay rate of the average of the squares, a scalar in [0, 1).
      eps: Added to the root, in the unit of the gradient. At 0 a gradient that has always been zero gives 0 / 0.
      eps_root: Added under the root, in the unit of the squared gradient.
      mu_dtype: What `mu` is stored in; None for the dtype of the parameters.
      nesterov: Whether to look ahead.
      nu_dtype: What `nu` is stored in; None for float32 or, if the parameters are wider, their dtype. The arithmetic is
        float32 or wider in any case.

    Returns:
      A pair with a `ScaleByAdamState`.

    Raises:
      ValueError: if `b1` or `b2` is a Python number that is not in [0, 1).

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.scale_by_adam()
      >>> updates, state = tx.update(jnp.array([5.0, -0.2]), tx.init(jnp.zeros(2)))
      >>> updates.tolist(), int(state.count)
      ([1.0, -1.0], 1)

    References:
      Kingma and Ba, Adam, arXiv:1412.6980. Dozat, Incorporating Nesterov Momentum into Adam, ICLR workshop 2016.

    Notes:
      `eps` is added after the bias correction, as in the paper's algorithm 1 and in PyTorch; TensorFlow adds it before,
      which makes it larger in effect during the first steps. `nu` stays in float32 for half-precision parameters, where
      an average with ``b2 = 0.999`` could not move. For complex updates `nu` is real.
    """
    moments.check_rate("scale_by_adam", "b1", b1)
    moments.check_rate("scale_by_adam", "b2", b2)

    def scalars(state):
        t = safe_increment(state.count)
        return dict(
            b1=moments.decay(b1),
            b2=moments.decay(b2),
            eps=eps,
            eps_root=eps_root,
            debias_mu=moments.debias(b1, safe_increment(t) if nesterov else t),
            debias_u=moments.debias(b1, t) if nesterov else None,
            debias_nu=moments.debias(b2, t),
        )

    slots = dict(mu=Slot(mu_dtype), nu=Slot(nu_dtype, squared=True))
    return leafwise(adam_rule, ScaleByAdamState, slots=slots, scalars=scalars, elementwise=True, sign=+1)


@transform
def adam(
    learning_rate: ScalarOrSchedule,
    b1: Numeric = 0.9,
    b2: Numeric = 0.999,
    eps: Numeric = 1e-8,
    eps_root: Numeric = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    nu_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Steps against the gradient's average in units of its root mean square.

    `scale_by_adam`, then ``u <- -learning_rate * u``.

    Args:
      learning_rate: A scalar, or a schedule from the number of updates made before to a scalar.
      b1: See `scale_by_adam`, as for the other arguments.
      b2: See `scale_by_adam`.
      eps: See `scale_by_adam`.
      eps_root: See `scale_by_adam`.
      mu_dtype: See `scale_by_adam`.
      nesterov: See `scale_by_adam`.
      nu_dtype: See `scale_by_adam`.

    Returns:
      A pair whose state is that of `scale_by_adam` and of `scale_by_learning_rate`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.adam(0.1)
      >>> tx.update(jnp.array([5.0]), tx.init(jnp.zeros(1)))[0].tolist()
      [-0.1]

    References:
      Kingma and Ba, Adam, arXiv:1412.6980.
    """
    rule = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov, nu_dtype=nu_dtype)
    return chain(rule, scale_by_learning_rate(learning_rate))


@transform
def adamw(
    learning_rate: ScalarOrSchedule,
    b1: Numeric = 0.9,
    b2: Numeric = 0.999,
    eps: Numeric = 1e-8,
    eps_root: Numeric = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskTree | None = None,
    *,
    nesterov: bool = False,
    nu_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Steps like Adam and shrinks the parameters by a fraction of themselves.

    `scale_by_adam`, then ``u <- -learning_rate * (u + weight_decay * p)``.

    Args:
      learning_rate: A scalar, or a schedule from the number of updates made before to a scalar.
      b1: See `scale_by_adam`.
      b2: See `scale_by_adam`.
      eps: See `scale_by_adam`.
      eps_root: See `scale_by_adam`.
      mu_dtype: See `scale_by_adam`.
      weight_decay: A scalar, or a schedule; it is multiplied by the learning rate.
      mask: Which leaves decay, see `add_decayed_weights`; None means all.
      nesterov: See `scale_by_adam`.
      nu_dtype: See `scale_by_adam`.

    Returns:
      A pair whose state is that of `scale_by_adam`, `add_decayed_weights` and `scale_by_learning_rate`. Its update
      needs the parameters.

    Raises:
      ValueError: while tracing, if `params` are missing.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx, params = optchain.adamw(0.1, weight_decay=0.5), jnp.array([2.0])
      >>> tx.update(jnp.array([5.0]), tx.init(params), params)[0].tolist()
      [-0.2]

    References:
      Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101.

    Notes:
      As in PyTorch the decay is multiplied by the learning rate; the paper multiplies it by the schedule's factor only.
    """
    rule = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov, nu_dtype=nu_dtype)
    return chain(rule, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))
