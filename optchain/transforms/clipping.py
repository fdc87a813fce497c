"""Bounding the updates: by entry, by tensor, by unit, over the whole tree, or example by example."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optchain.core.errors import known
from optchain.core.leaves import leafwise
from optchain.core.pair import EmptyState, GradientTransformationExtraArgs, Numeric
from optchain.core.value import transform
from optchain.tree.norms import scaled_norm, scaled_unit_norm

ClipState = EmptyState
ClipByGlobalNormState = EmptyState
AdaptiveGradClipState = EmptyState


@jax.jit
def limit_factors(root: jax.Array, inverse: jax.Array, limit: Numeric) -> tuple[jax.Array, jax.Array]:
    """Two numbers whose product with something of norm ``root / inverse`` has at most the norm `limit`.

    Both are exactly 1 for a norm within the limit, and NaN is among them if the norm is not finite. There are two so
    that neither leaves the range of the dtype where their product would.
    """
    one, nan = lax.full_like(root, 1), lax.full_like(root, jnp.nan)
    limit = jnp.broadcast_to(jnp.asarray(limit, root.dtype), root.shape)
    scaled = lax.mul(limit, inverse)
    inside, huge = lax.le(root, scaled), lax.lt(inverse, one)
    # Both end in a division: XLA computes those once and what is cheaper anew in every kernel that reads it.
    first = lax.div(one, lax.select(lax.bitwise_and(huge, lax.bitwise_not(inside)), lax.div(one, inverse), one))
    second = lax.div(
        lax.select(inside, one, lax.select(huge, limit, scaled)),
        lax.select(lax.is_finite(root), lax.select(inside, one, root), nan),
    )
    return first, second


def clip_rule(u, p, *, max_delta):
    """``min(max(u, -max_delta), max_delta)``."""
    if jnp.iscomplexobj(u):
        raise TypeError("clip: complex updates have no order; clip their magnitude with clip_by_global_norm.")
    return jnp.clip(u, -max_delta, max_delta)


@transform
def clip(max_delta: Numeric) -> GradientTransformationExtraArgs:
    """Clips each entry of the updates to an interval around zero.

    ``u <- min(max(u, -max_delta), max_delta)``. Unlike a clip of the norm this changes the direction. An infinite entry
    becomes the bound, NaN stays NaN.

    Args:
      max_delta: The largest magnitude of an entry, a scalar of at least 0.

    Returns:
      A pair with an `EmptyState`.

    Raises:
      TypeError: while tracing, for complex updates.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.clip(1.0)
      >>> tx.update(jnp.array([3.0, -0.5, -4.0]), tx.init(jnp.zeros(3)))[0].tolist()
      [1.0, -0.5, -1.0]
    """
    check_limit("clip", "max_delta", max_delta)
    return leafwise(clip_rule, scalars=lambda state: dict(max_delta=max_delta), elementwise=True, sign=+1)


def clip_by_block_rms_rule(u, p, *, threshold):
    """``u / max(1, rms(u) / threshold)``."""
    limit = threshold * math.sqrt(max(u.size, 1))
    first, second = limit_factors(*scaled_norm(u), limit)
    return first * u * second


@transform
def clip_by_block_rms(threshold: Numeric) -> GradientTransformationExtraArgs:
    """Scales each tensor of the updates down to a largest root mean square.

    ``u <- u / max(1, rms(u) / threshold)`` with ``rms(u) = sqrt(mean(|u|**2))``, leaf by leaf. A tensor with a
    non-finite entry becomes all NaN.

    Args:
      threshold: The largest root mean square of a tensor, a scalar of at least 0.

    Returns:
      A pair with an `EmptyState`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.clip_by_block_rms(1.0)
      >>> tx.update(jnp.array([3.0, -3.0]), tx.init(jnp.zeros(2)))[0].tolist()
      [1.0, -1.0]

    References:
      Shazeer and Stern, Adafactor, arXiv:1804.04235, section 6.
    """
    check_limit("clip_by_block_rms", "threshold", threshold)
    return leafwise(clip_by_block_rms_rule, scalars=lambda state: dict(threshold=threshold), sign=+1)


def scale_twice_rule(u, p, *, first, second):
    """``first * u * second``, whose factors may be out of range together."""
    return first * u * second


@transform
def clip_by_global_norm(max_norm: Numeric) -> GradientTransformationExtraArgs:
    """Scales all updates down to a largest global norm.

    ``u <- u * min(1, max_norm / norm)`` with the L2 norm over all entries of all leaves. A norm within the limit, the
    limit included, leaves the updates bit for bit as they are. If an entry is NaN or infinite, every entry becomes NaN.

    Args:
      max_norm: The largest global norm, a scalar of at least 0.

    Returns:
      A pair with an `EmptyState`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.clip_by_global_norm(1.0)
      >>> updates, _ = tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))
      >>> [round(float(u), 6) for u in updates]
      [0.6, 0.8]

    References:
      Pascanu et al., On the difficulty of training recurrent neural networks, arXiv:1211.5063.

    Notes:
      The norm is accumulated in float32 or wider and does not overflow for large finite entries. PyTorch adds 1e-6 to
      the norm; here the result has exactly the norm asked for.
    """
    check_limit("clip_by_global_norm", "max_norm", max_norm)

    def tree_scalars(updates, state, params):
        first, second = limit_factors(*scaled_norm(updates), max_norm)
        return dict(first=first, second=second)

    return leafwise(scale_twice_rule, tree_scalars=tree_scalars, elementwise=True, sign=+1)


def unit_axes(x: jax.Array, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """The axes over which the norm of a unit is taken: those of its inputs in the usual layouts of weights.

    Raises:
      ValueError: for more than five axes, if `axis` does not say which.
    """
    if axis is not None:
        return (axis,) if isinstance(axis, int) else tuple(axis)
    if sum(size != 1 for size in x.shape) <= 1:  # biases, gains and scalars are one unit
        return tuple(range(x.ndim))
    by_ndim = {2: (0,), 3: (0,), 4: (0, 1, 2), 5: (0, 1, 2, 3)}
    if x.ndim not in by_ndim:
        raise ValueError(
            f"unitwise_norm: which axes of {x.dtype}{list(x.shape)} belong to one unit is not known; "
            "pass axis=(...), the axes to reduce."
        )
    return by_ndim[x.ndim]


def unitwise_norm(x: Numeric, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """Takes the L2 norm of each unit of a weight and repeats it over the unit.

    Args:
      x: An array: a bias or scalar (one unit), a dense kernel (in, out) or (in, heads, out), or a convolution kernel
        (height, width, in, out) or (height, width, depth, in, out).
      axis: The axes to reduce; None chooses all but the last, for 2 and 3 axes the first, and all for biases.

    Returns:
      An array of the shape of `x`, in float32 or wider.

    Raises:
      ValueError: for more than five axes without `axis`.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain.transforms import unitwise_norm
      >>> unitwise_norm(jnp.array([[3.0, 0.0], [4.0, 1.0]])).tolist()
      [[5.0, 1.0], [5.0, 1.0]]
    """
    x = jnp.asarray(x)
    root, inverse = scaled_unit_norm(x, unit_axes(x, axis))
    return jnp.broadcast_to(root / inverse, x.shape)


def unitwise_clip(g_norm: jax.Array, max_norm: jax.Array, grad: jax.Array, div_eps: float = 1e-6) -> jax.Array:
    """Scales entries down where their unit's norm is above its limit.

    ``grad * max_norm / max(g_norm, div_eps)`` where ``g_norm >= max_norm``, else ``grad``.

    Args:
      g_norm: The norm of each entry's unit, of the shape of `grad` (see `unitwise_norm`).
      max_norm: The limit for each entry's unit, of the shape of `grad`.
      grad: The gradient.
      div_eps: The smallest divisor.

    Returns:
      An array like `grad`.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain.transforms import unitwise_clip
      >>> unitwise_clip(jnp.array([5.0, 5.0]), jnp.array([1.0, 1.0]), jnp.array([3.0, 4.0])).tolist()
      [0.6, 0.8]
    """
    clipped = grad * (max_norm / jnp.maximum(g_norm, div_eps))
    return jnp.where(g_norm < max_norm, grad, clipped).astype(jnp.result_type(grad))


def adaptive_grad_clip_rule(u, p, *, clipping, eps, axis):
    """``u * min(1, clipping * max(norm(p), eps) / norm(u))`` by unit."""
    axes = unit_axes(u, axis)
    root, inverse = scaled_unit_norm(p, axes)
    first, second = limit_factors(*scaled_unit_norm(u, axes), clipping * jnp.maximum(root / inverse, eps))
    return first * u * second


@transform
def adaptive_grad_clip(
    clipping: Numeric, eps: Numeric = 1e-3, axis: int | tuple[int, ...] | None = None
) -> GradientTransformationExtraArgs:
    """Scales each unit of the updates down to a fraction of the norm of its weights.

    ``u <- u * min(1, clipping * max(norm(p), eps) / norm(u))``, with the L2 norms over the inputs of one output unit. A
    unit with a non-finite entry becomes all NaN.

    Args:
      clipping: The largest ratio of the norms of update and weights, a scalar of at least 0.
      eps: The smallest norm of weights, so that units that start at zero can move.
      axis: The axes that belong to one unit; None chooses by the number of axes (see `unitwise_norm`).

    Returns:
      A pair with an `EmptyState`; its update needs the parameters.

    Raises:
      ValueError: while tracing, if `params` are missing, or for a leaf of more than five axes without `axis`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx, weights = optchain.adaptive_grad_clip(0.5), jnp.array([[3.0], [4.0]])
      >>> tx.update(2 * weights, tx.init(weights), weights)[0].tolist()
      [[1.5], [2.0]]

    References:
      Brock et al., High-Performance Large-Scale Image Recognition Without Normalization, arXiv:2102.06171.
    """
    check_limit("adaptive_grad_clip", "clipping", clipping)
    return leafwise(
        adaptive_grad_clip_rule,
        scalars=lambda state: dict(clipping=clipping, eps=eps),
        static=dict(axis=axis if axis is None or isinstance(axis, int) else tuple(axis)),
        needs_params=True,
        sign=+1,
    )


def per_example_global_norm_clip(grads: Any, l2_norm_clip: Numeric) -> tuple[Any, jax.Array]:
    """Clips the gradient of each example by its global norm and sums over the examples.

    Args:
      grads: A pytree of per-example gradients, each leaf with the examples on axis 0.
      l2_norm_clip: The largest global norm of one example's gradient.

    Returns:
      The sum over examples of the clipped gradients, and the number of examples that were clipped.

    Raises:
      ValueError: if the leaves do not have one common size on axis 0.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> total, clipped = optchain.per_example_global_norm_clip({"w": jnp.array([[3.0, 4.0], [0.0, 0.5]])}, 1.0)
      >>> [round(float(x), 6) for x in total["w"]], int(clipped)
      ([0.6, 1.3], 1)

    References:
      Abadi et al., Deep Learning with Differential Privacy, arXiv:1607.00133.
    """
    check_limit("per_example_global_norm_clip", "l2_norm_clip", l2_norm_clip)
    grads = _examples("per_example_global_norm_clip", grads)
    root, inverse = jax.vmap(scaled_norm)(grads)
    factors = limit_factors(root, inverse, l2_norm_clip)
    return jax.tree.map(lambda g: _sum_clipped(g, *factors), grads), jnp.sum(~(root <= l2_norm_clip * inverse))


def per_example_layer_norm_clip(grads: Any, global_l2_norm_clip: Numeric, uniform: bool = True) -> tuple[Any, Any]:
    """Clips the gradient of each example tensor by tensor and sums over the examples.

    The limits of the tensors are such that a clipped gradient has at most the global norm `global_l2_norm_clip`: equal,
    ``global_l2_norm_clip / sqrt(tensors)``, or in proportion to the square root of the tensors' sizes.

    Args:
      grads: A pytree of per-example gradients, each leaf with the examples on axis 0.
      global_l2_norm_clip: The largest global norm of one example's gradient.
      uniform: Whether all tensors get the same limit.

    Returns:
      The sums over examples of the clipped gradients, and a tree with the number of examples clipped for each tensor.

    Raises:
      ValueError: if the leaves do not have one common size on axis 0.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> total, clipped = optchain.per_example_layer_norm_clip([jnp.array([[3.0, 4.0], [0.0, 0.5]])], 1.0)
      >>> [round(float(x), 6) for x in total[0]], int(clipped[0])
      ([0.6, 1.3], 1)

    References:
      McMahan et al., Learning Differentially Private Recurrent Language Models, arXiv:1710.06963.
    """
    check_limit("per_example_layer_norm_clip", "global_l2_norm_clip", global_l2_norm_clip)
    grads = _examples("per_example_layer_norm_clip", grads)
    leaves, treedef = jax.tree.flatten(grads)
    size = max(sum(g.size for g in leaves), 1)
    sums, counts = [], []
    for g in leaves:
        share = 1 / len(leaves) if uniform else g.size / size
        limit = global_l2_norm_clip * math.sqrt(share)
        root, inverse = jax.vmap(scaled_norm)(g)
        sums.append(_sum_clipped(g, *limit_factors(root, inverse, limit)))
        counts.append(jnp.sum(~(root <= limit * inverse)))
    return treedef.unflatten(sums), treedef.unflatten(counts)


def _sum_clipped(g: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """The sum over axis 0 of ``g`` times two factors an example."""
    shape = (-1,) + (1,) * (g.ndim - 1)
    wide = g.astype(jnp.promote_types(g.dtype, jnp.float32))
    return jnp.sum(wide * first.reshape(shape) * second.reshape(shape), axis=0).astype(g.dtype)


def _examples(name: str, grads: Any) -> Any:
    grads = jax.tree.map(lambda g: jnp.asarray(g) * 1.0, grads)  # integers become floating
    sizes = {g.shape[:1] for g in jax.tree.leaves(grads)}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            f"{name}: every leaf needs the examples on axis 0, but the sizes there are "
            f"{', '.join(sorted(str(s[0]) if s else 'none' for s in sizes)) or 'those of no leaf at all'}; "
            "make per-example gradients with jax.vmap(jax.grad(...))."
        )
    return grads


def check_limit(name: str, argument: str, value: Numeric) -> None:
    """Refuses a bound that is complex, no scalar, or negative; a traced one is only known when the program runs."""
    limit = known(value)
    if value is None or np.iscomplexobj(value) or np.shape(value) or (limit is not None and not limit >= 0):
        raise ValueError(f"{name}: {argument} must be a number of at least 0, not {value!r}.")
