"""What makes a transform or a schedule a value: the recorded call that built it.

`transform` and `schedule` decorate builders. Equal calls (equal arguments of equal types) give equal results, because
the second call returns what the first one made while that is in use; ``repr`` reads like the call, and copying and
pickling repeat it. Arguments that have no value of their own, such as arrays, leave the result its identity.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import math
import numbers
import weakref
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec

import jax
import numpy as np

from optchain.core.pair import GradientTransformationExtraArgs, Schedule
from optchain.core.plan import named

P = ParamSpec("P")

_live: weakref.WeakValueDictionary[Hashable, Call] = weakref.WeakValueDictionary()
# A loop that builds, jits and drops the same optimizer should still compile once, so the latest calls are kept alive.
_latest: collections.deque[Call] = collections.deque(maxlen=256)


class Call:
    """A builder with the arguments of one call, and what the call made.

    What is made refers to its call, and is freed with its last user: `made` itself does not refer back.
    """

    def __init__(self, builder: Callable, bound: inspect.BoundArguments, made: Any):
        self.builder = builder
        self.bound = bound
        self.made = made
        self.plain = all(map(_plain, bound.arguments.values()))

    @property
    def name(self) -> str:
        return self.builder.__name__

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: _own(value) for name, value in self.bound.arguments.items()}

    def reduced(self) -> tuple[Callable, tuple]:
        """What ``__reduce__`` returns for the thing that the call made: make the call again."""
        return _rebuild, (self.builder, self.bound.args, self.bound.kwargs)

    def __repr__(self) -> str:
        shown = []
        parameters = self.bound.signature.parameters
        # Arguments ahead of a non-empty *args can only be passed by position.
        positional = any(p.kind is p.VAR_POSITIONAL and self.bound.arguments[n] for n, p in parameters.items())
        for name, value in self.bound.arguments.items():
            parameter = parameters[name]
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and positional:
                shown.append(_repr(value))
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                shown += [_repr(v) for v in value]
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                shown += [f"{k}={_repr(v)}" for k, v in value.items()]
            elif value is not parameter.default and _repr(value) != _repr(parameter.default):
                shown.append(f"{name}={_repr(value)}")
        return f"{self.name}({', '.join(shown)})"


def transform(builder: Callable[P, Any]) -> Callable[P, GradientTransformationExtraArgs]:
    """Records the calls of a function that builds a pair, which makes its pairs values.

    Args:
      builder: Returns a pair made by `leafwise`, `chain` or `GradientTransformationExtraArgs`.

    Returns:
      A function with the same signature. Two of its pairs are equal, with equal hashes, if their arguments are equal
      and of equal types; their ``repr`` reads like the call and ``pickle`` repeats it.

    Example:
      >>> import optchain
      >>> @optchain.transform
      ... def descend(rate, times=1):
      ...     return optchain.scale(-rate * times)
      >>> descend(0.1, times=2)
      descend(rate=0.1, times=2)
      >>> descend(0.1) == descend(0.1), descend(0.1) == descend(0.2)
      (True, False)
    """

    def seal(call: Call) -> GradientTransformationExtraArgs:
        info = dataclasses.replace(call.made.info, call=call)
        return GradientTransformationExtraArgs.build(call.made.init, call.made.update, info)

    return _recording(builder, lambda made: named(made, builder.__name__), seal)


class RecordedSchedule:
    """A schedule that knows the call that built it: ``schedule(count)`` is the value at step `count`."""

    def __init__(self, function: Schedule, call: Call):
        self._function = function
        self.call = call

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return self.call.arguments

    def __call__(self, count: jax.typing.ArrayLike) -> jax.typing.ArrayLike:
        return self._function(count)

    def __repr__(self) -> str:
        return repr(self.call)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedSchedule) and self.call is other.call

    def __hash__(self) -> int:
        return hash(self.call)

    def __reduce__(self):
        return self.call.reduced()


def schedule(builder: Callable[P, Schedule]) -> Callable[P, RecordedSchedule]:
    """Records the calls of a function that builds a schedule, which makes its schedules values, as `transform` does.

    Example:
      >>> import optchain
      >>> optchain.linear_schedule(1.0, 0.0, 10) == optchain.linear_schedule(1.0, 0.0, transition_steps=10)
      True
    """
    return _recording(builder, lambda made: made, lambda call: RecordedSchedule(call.made, call))


def _rebuild(builder, args, kwargs) -> Any:
    return builder(*args, **kwargs)


def _recording(
    builder: Callable[P, Any], prepare: Callable[[Any], Any], seal: Callable[[Call], Any]
) -> Callable[P, Any]:
    """The builder with its calls recorded: `prepare` takes what it made, `seal` returns that with its call."""
    signature = inspect.signature(builder)
    kinds = {name: _kinds(parameter.annotation) for name, parameter in signature.parameters.items()}

    @functools.wraps(builder)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{builder.__name__}: {error}; call it as {builder.__name__}{_bare(signature)}.") from None
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            _check(builder, name, kinds[name], value)
            bound.arguments[name] = _dtype(builder, name, value) if name.endswith("dtype") else _own(value)
        try:
            key = (wrapper, tuple(_key(v) for v in bound.arguments.values()))
        except TypeError:  # an argument without a value of its own
            key = None
        known = None if key is None else _live.get(key)
        if known is None:
            made = builder(*bound.args, **bound.kwargs)
            known = _call_of(made)
            if known is None or known.builder is not wrapper:  # else it called itself with arguments in normal form
                known = Call(wrapper, bound, prepare(made))
            if key is not None:
                _live[key] = known
                if known.plain:
                    _latest.append(known)
        return seal(known)

    return wrapper


def _call_of(made: Any) -> Call | None:
    return made.call if isinstance(made, RecordedSchedule) else getattr(getattr(made, "info", None), "call", None)


def _bare(signature: inspect.Signature) -> inspect.Signature:
    """The signature without its annotations."""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return inspect.Signature(bare)


# What the annotations of numbers and schedules ask for.
_EXPECTED = {"Numeric": "a number", "Schedule": "a schedule", "ScalarOrSchedule": "a number or a schedule"}


def _kinds(annotation: Any) -> list[str]:
    """The parts of an annotation of a number or a schedule; empty for any other."""
    kinds = [kind.strip() for kind in annotation.split("|")] if isinstance(annotation, str) else []
    return kinds if any(kind in _EXPECTED for kind in kinds) else []


def _check(builder: Callable, name: str, kinds: list[str], value: Any) -> None:
    """Refuses an argument that is not what the annotation of a number or a schedule says."""
    if not kinds or (value is None and "None" in kinds):
        return
    number = hasattr(value, "dtype") or isinstance(value, (bool, numbers.Number))
    fits = {"Numeric": number, "Schedule": callable(value), "ScalarOrSchedule": number or callable(value)}
    if not any(fits.get(kind) for kind in kinds):
        expected = next(_EXPECTED[kind] for kind in kinds if kind in _EXPECTED)
        raise TypeError(f"{builder.__name__}: {name} is {value!r}; pass {expected}.")


def _dtype(builder: Callable, name: str, value: Any) -> np.dtype | None:
    """A dtype in one spelling."""
    try:
        return None if value is None else np.dtype(value)
    except TypeError:
        raise TypeError(
            f"{builder.__name__}: {name} is {value!r}, which is no dtype; pass one such as jnp.bfloat16."
        ) from None


def _own(value: Any) -> Any:
    """The argument with its plain containers copied, so that nobody else can change what was recorded."""
    if type(value) is list:
        return [_own(v) for v in value]
    if type(value) is tuple:
        return tuple(_own(v) for v in value)
    if type(value) is dict:
        return {k: _own(v) for k, v in value.items()}
    return value


def _plain(value: Any) -> bool:
    """Whether a value holds nothing that somebody may want to be freed, such as what a closure refers to."""
    if type(value) in (list, tuple):
        return all(map(_plain, value))
    if type(value) is dict:
        return all(map(_plain, value)) and all(map(_plain, value.values()))
    if inspect.isfunction(value):
        return value.__closure__ is None
    call = _call_of(value)
    return call.plain if call else value is None or isinstance(value, (numbers.Number, str, np.dtype))


def _key(value: Any) -> Hashable:
    """Equal keys mean equal and equally typed values; raises TypeError for what can only be compared by identity."""
    kind = type(value)
    if isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError("arrays are compared by identity")
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if kind is float:
        return kind, value.hex()  # tells 0.0 from -0.0 and finds NaN equal to itself
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind in (list, tuple):
        return kind, tuple(map(_key, value))
    if kind is dict:
        return kind, frozenset((_key(k), _key(v)) for k, v in value.items())
    hash(value)
    return kind, value


def _repr(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, np.dtype):
        return repr(value.name)
    if isinstance(value, (jax.Array, np.ndarray)) and value.ndim:
        return f"<{value.dtype}[{','.join(map(str, value.shape))}]>"
    if inspect.isfunction(value):
        return value.__name__
    if type(value) in (list, tuple, dict):
        return _repr_container(value)
    return repr(value)


def _repr_container(value: Any) -> str:
    if type(value) is dict:
        return "{" + ", ".join(f"{_repr(k)}: {_repr(v)}" for k, v in value.items()) + "}"
    inner = ", ".join(map(_repr, value))
    if type(value) is list:
        return f"[{inner}]"
    return f"({inner},)" if len(value) == 1 else f"({inner})"
