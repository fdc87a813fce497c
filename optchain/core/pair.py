"""The protocol: a gradient transformation is a pair of pure functions.

``init(params)`` makes a state and ``update(updates, state, params)`` turns updates and state into the next ones.
Everything else in the library is such a pair, or builds one from others. A pair that the library built also knows what
it is (`Info`); a pair written by hand, here or in another library, does not have to.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax

if TYPE_CHECKING:
    from optchain.core.value import Call

PyTree = Any
Params = Any
Updates = Any
OptState = Any
Numeric = jax.typing.ArrayLike
Schedule = Callable[[Numeric], Numeric]
ScalarOrSchedule = Numeric | Schedule


class TransformInitFn(Protocol):
    """``init(params) -> state``: a state for parameters of this structure, sharing no memory with them."""

    def __call__(self, params: Params) -> OptState: ...


class TransformUpdateFn(Protocol):
    """``update(updates, state, params=None) -> (updates, state)``."""

    def __call__(self, updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]: ...


class TransformUpdateExtraArgsFn(Protocol):
    """An update that also takes keywords such as ``value=loss``, and ignores those meant for another link."""

    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Info:
    """What a pair knows of itself.

    Attributes:
      call: The call that built it, or None.
      links: The pairs that it runs one after the other, in order; empty for a pair that is not made of others.
      sign: +1 if the update keeps the direction it is given, -1 if it flips it, 0 if it erases it, None if unknown.
      plan: What the executor runs in place of ``update`` when it can (see `optchain.core.plan`), or None.
    """

    call: Call | None = None
    links: tuple[Any, ...] = ()
    sign: int | None = None
    plan: Any = None


_UNKNOWN = Info()


class GradientTransformation(NamedTuple):
    """A pair of pure functions over pytrees.

    Attributes:
      init: Makes the state: ``state = tx.init(params)``.
      update: Transforms the updates: ``updates, state = tx.update(updates, state, params)``.

    Example:
      >>> import optchain
      >>> halve = optchain.GradientTransformation(
      ...     init=lambda params: (), update=lambda updates, state, params=None: (updates / 2, state)
      ... )
      >>> halve.update(8.0, halve.init(1.0))
      (4.0, ())
    """

    init: TransformInitFn
    update: TransformUpdateFn

    @property
    def info(self) -> Info:
        """What the library recorded about this pair; nothing for one written by hand."""
        return vars(self).get("_info", _UNKNOWN) if hasattr(self, "__dict__") else _UNKNOWN

    @property
    def name(self) -> str:
        """The name of the function that built the pair, or ``'custom'``."""
        return self.info.call.name if self.info.call else "custom"

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The arguments of the call that built the pair, defaults included."""
        return self.info.call.arguments if self.info.call else {}

    @property
    def links(self) -> tuple[GradientTransformation, ...]:
        """The pairs that this one runs in order; empty if it is not made of others."""
        return self.info.links

    @property
    def sign(self) -> int | None:
        """+1 keeps the direction of what comes in, -1 flips it, 0 erases it, None does not say."""
        return self.info.sign

    def __repr__(self) -> str:
        if self.info.call:
            return repr(self.info.call)
        return f"{type(self).__name__}(init={self.init!r}, update={self.update!r})"


class GradientTransformationExtraArgs(GradientTransformation):
    """A pair whose update also takes keyword arguments, such as ``value=loss``.

    Attributes:
      init: Makes the state.
      update: ``update(updates, state, params=None, **extra_args)``; keywords meant for another link are ignored.

    Example:
      >>> import optchain
      >>> tx = optchain.GradientTransformationExtraArgs(
      ...     init=lambda params: (), update=lambda updates, state, params=None, *, value, **_: (updates * value, state)
      ... )
      >>> optchain.chain(optchain.scale(2.0), tx).update(1.0, (optchain.ScaleState(), ()), value=3.0)[0].item()
      6.0
    """

    update: TransformUpdateExtraArgsFn  # pyright: ignore[reportIncompatibleVariableOverride]

    @classmethod
    def build(cls, init: Callable, update: Callable, info: Info) -> GradientTransformationExtraArgs:
        """The pair (init, update) that knows `info` of itself."""
        pair = cls(init, update)
        vars(pair)["_info"] = info
        return pair

    def __reduce__(self):
        if self.info.call:
            return self.info.call.reduced()
        return GradientTransformationExtraArgs.build, (self.init, self.update, self.info)


class EmptyState(NamedTuple):
    """The state of a transform that needs none."""


def init_empty_state(params: Params) -> EmptyState:
    """An `EmptyState`, whatever the parameters."""
    del params
    return EmptyState()


def takes_extra_args(tx: Any) -> bool:
    """Whether ``tx.update`` accepts arbitrary keywords, wherever the pair was made."""
    if isinstance(tx, GradientTransformationExtraArgs):
        return True
    try:
        parameters = inspect.signature(tx.update).parameters.values()
    except (TypeError, ValueError):  # a callable without a readable signature
        return False
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def with_extra_args_support(tx: GradientTransformation) -> GradientTransformationExtraArgs:
    """Makes a pair tolerate keyword arguments that it does not use.

    Args:
      tx: Any pair. One that already takes extra arguments is returned as it is.

    Returns:
      A pair whose ``update`` drops the extra arguments before it calls ``tx.update``.

    Example:
      >>> import optchain
      >>> tx = optchain.GradientTransformation(lambda params: (), lambda updates, state, params=None: (updates, state))
      >>> optchain.with_extra_args_support(tx).update(1.0, (), value=0.5)
      (1.0, ())
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    if takes_extra_args(tx):
        return GradientTransformationExtraArgs(tx.init, tx.update)

    def update(updates, state, params=None, **extra_args):
        del extra_args
        return tx.update(updates, state, params)

    return GradientTransformationExtraArgs(tx.init, update)
