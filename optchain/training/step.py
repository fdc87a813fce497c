"""`compile_train`: loss, gradient, transform and new parameters in one compiled function."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from optchain.core.kernels import array_of
from optchain.core.leaves import safe_increment
from optchain.core.pair import GradientTransformation, with_extra_args_support
from optchain.training import checks
from optchain.tree.norms import norm
from optchain.tree.updates import apply_updates


class TrainState(NamedTuple):
    """What a training step carries from one call to the next.

    Attributes:
      params: The parameters, a pytree of floating or complex arrays.
      opt_state: The state of the optimizer.
      step: How many steps were made, an int32 scalar.
    """

    params: Any
    opt_state: Any
    step: jax.Array


def compile_train(
    loss_fn: Callable[..., Any],
    tx: GradientTransformation,
    *,
    has_aux: bool = False,
    donate: bool = True,
    metrics: tuple[str, ...] = (),
) -> TrainStep:
    """Makes a compiled training step of a loss and an optimizer.

    One call computes ``loss, grad = value_and_grad(loss_fn)(params, *batch)``, then
    ``updates, opt_state = tx.update(grad, opt_state, params, value=loss, grad=grad, value_fn=...)``, then
    ``params = apply_updates(params, updates)``, as one compiled program. ``value_fn(params)`` is the loss on the same
    batch; links that do not take these keywords do not see them.

    Args:
      loss_fn: ``loss_fn(params, *batch)`` returns the loss, a real floating scalar, or ``(loss, aux)`` with `has_aux`.
      tx: The optimizer, a pair of this library, of another one, or written by hand.
      has_aux: Whether `loss_fn` returns ``(loss, aux)``; `aux` is a pytree of arrays.
      donate: Whether a step may overwrite the state that it is given, which saves the memory of a second copy. The old
        state is then gone. Ignored where the step is called inside ``jax.jit`` or ``jax.lax.scan``; under ``jax.vmap``
        alone JAX warns that it cannot donate, so pass False there.
      metrics: What to report beside the loss, from ``"grad_norm"`` and ``"update_norm"``: the global norms of the
        gradient and of the update. What is not asked for is not computed.

    Returns:
      A `TrainStep`: ``state = step.init(params)``, then ``state, metrics = step(state, *batch)``.

    Raises:
      ValueError: if `tx` keeps the sign of the gradient, so that it would climb, or a metric is unknown.
      TypeError: if `loss_fn` is no function or `tx` no pair. While a step is traced: if the loss is not a real floating
        scalar, a parameter is not a floating or complex array, or the state is not a `TrainState`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> def loss_fn(w, x, y):
      ...     return jnp.mean((x * w - y) ** 2)
      >>> step = optchain.compile_train(loss_fn, optchain.sgd(0.1), metrics=("grad_norm",))
      >>> state = step.init(jnp.array(0.0))
      >>> state, metrics = step(state, jnp.array([1.0, 2.0]), jnp.array([2.0, 4.0]))
      >>> {name: metrics[name].item() for name in ("loss", "grad_norm")}
      {'loss': 10.0, 'grad_norm': 10.0}
      >>> state.params.item(), state.step.item()
      (1.0, 1)

    Notes:
      For complex parameters ``jax.grad`` returns the conjugate of the direction of steepest ascent. It is conjugated
      before `tx` sees it, so that every optimizer descends.
    """
    checks.check_call(loss_fn, tx, metrics)
    return TrainStep(loss_fn, tx, has_aux, donate, tuple(metrics))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainStep:
    """A compiled training step; `compile_train` makes it and describes its fields.

    It may be called inside other compiled functions. Steps made of one optimizer can share one state.
    """

    loss_fn: Callable[..., Any]
    tx: GradientTransformation
    has_aux: bool = False
    donate: bool = True
    metrics: tuple[str, ...] = ()
    _traces: list[None] = dataclasses.field(default_factory=list, init=False)

    def init(self, params: Any) -> TrainState:
        """The state before the first step.

        Args:
          params: A pytree of floating or complex arrays. They are copied, with their sharding, and stay usable.

        Returns:
          A state that shares no memory with anything else, so that it can be donated.
        """
        checks.check_params(params)
        params = _fresh(jax.tree.map(array_of, params))
        return _beside(params, TrainState(params, _fresh(self.tx.init(params)), jnp.zeros([], jnp.int32)))

    def __call__(self, state: TrainState, *batch: Any) -> tuple[TrainState, dict[str, Any]]:
        """Makes one step.

        Args:
          state: What `init` or the last step returned.
          *batch: The further arguments of `loss_fn`, pytrees of arrays.

        Returns:
          The new state, and a dictionary with the ``loss`` before the step, ``aux`` if `loss_fn` returns it, and the
          metrics asked for, float32 scalars.
        """
        if not isinstance(state, TrainState):
            raise checks.not_a_state(state)
        count = state.step
        if isinstance(count, jax.Array) and not isinstance(count, Tracer) and count.is_deleted():
            raise checks.spent_state()
        return self._compiled(state, *batch)

    @property
    def compilations(self) -> int:
        """How often the step was traced for compilation: once for each structure, shape and dtype of the batch."""
        return len(self._traces)

    def lower(self, state: TrainState, *batch: Any) -> jax.stages.Lowered:
        """The step lowered for these arguments, which may be `jax.ShapeDtypeStruct`, to look at its program or cost."""
        if not isinstance(state, TrainState):
            raise checks.not_a_state(state)
        return self._compiled.lower(state, *batch)

    def __repr__(self) -> str:
        shown = {"loss_fn": getattr(self.loss_fn, "__name__", self.loss_fn), "tx": repr(self.tx)}
        for field in ("has_aux", "donate", "metrics"):
            if getattr(self, field) != getattr(TrainStep, field):
                shown[field] = repr(getattr(self, field))
        return f"compile_train({', '.join(f'{name}={value}' for name, value in shown.items())})"

    @functools.cached_property
    def _compiled(self) -> Any:
        update = with_extra_args_support(self.tx).update

        def train_step(state: TrainState, *batch: Any) -> tuple[TrainState, dict[str, Any]]:
            params, opt_state, count = state
            checks.check_params(params)

            def loss_and_aux(params):
                return checks.split_loss(self.loss_fn(params, *batch), self.has_aux)

            (loss, aux), grads = jax.value_and_grad(loss_and_aux, has_aux=True)(params)
            grads = jax.tree.map(lambda g: jnp.conj(g) if jnp.iscomplexobj(g) else g, grads)
            updates, opt_state = update(
                grads, opt_state, params, value=loss, grad=grads, value_fn=lambda params: loss_and_aux(params)[0]
            )
            report = {"loss": loss} | ({"aux": aux} if self.has_aux else {})
            for name, tree in (("grad_norm", grads), ("update_norm", updates)):
                if name in self.metrics:
                    report[name] = norm(tree).astype(jnp.float32)
            new = TrainState(apply_updates(params, updates), opt_state, safe_increment(count))
            self._traces.append(None)  # here a trace that raised does not count
            return new, report

        return jax.jit(train_step, donate_argnums=0 if self.donate else ())


def _beside(params: Any, state: TrainState) -> TrainState:
    """The state with what lies on one device, such as counts, on the whole mesh of the parameters.

    A step returns it there, and would be compiled a second time for it.
    """
    shardings = [x.sharding for x in jax.tree.leaves(params) if not isinstance(x, Tracer)]
    meshes = [s.mesh for s in shardings if isinstance(s, NamedSharding) and len(s.device_set) > 1]
    if not meshes:
        return state
    everywhere = NamedSharding(meshes[0], PartitionSpec())
    return jax.tree.map(lambda x: x if len(x.sharding.device_set) > 1 else jax.device_put(x, everywhere), state)


def _fresh(tree: Any) -> Any:
    """A copy in memory of its own, each array with its sharding and no longer weakly typed."""
    leaves, treedef = jax.tree.flatten(tree)
    del tree
    for i, x in enumerate(leaves):  # in place, so that each original that nobody else holds is freed before the next
        leaves[i] = jnp.array(x, dtype=jnp.result_type(x), copy=True)
    return treedef.unflatten(leaves)
