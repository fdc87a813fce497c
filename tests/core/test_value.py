"""Transforms and schedules as values: repr, ==, hash, copies, and that equal values compile once."""

import copy
import gc
import pickle
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import optchain

NAMES = {name: getattr(optchain, name) for name in dir(optchain)} | {"np": np}


def double_rule(u, p, *, factor):
    return factor * u


@optchain.transform
def boost(factor=2.0, *rest, label="plain", **more):
    """A transform of a user's own."""
    return optchain.leafwise(double_rule, scalars=lambda state: dict(factor=factor), sign=+1)


@optchain.transform
def descend(rate, times=1):
    return optchain.chain(optchain.clip(1.0), optchain.scale(-rate * times))


@optchain.schedule
def halving(value, every=1):
    return lambda count: value * 0.5 ** (count // every)


class Batch(NamedTuple):
    w: jax.Array
    b: jax.Array


def mask_of_weights(tree):
    return jax.tree.map(lambda x: x.ndim > 1, tree)


# What can be written down: each of these is equal to what its repr evaluates to.
PLAIN = [
    (lambda: optchain.scale(0.1), "scale(step_size=0.1)"),
    (lambda: optchain.scale(-0.0), "scale(step_size=-0.0)"),
    (lambda: optchain.scale(float("nan")), "scale(step_size=float('nan'))"),
    (lambda: optchain.scale(-float("inf")), "scale(step_size=float('-inf'))"),
    (lambda: optchain.scale(1 + 2j), "scale(step_size=(1+2j))"),
    (lambda: optchain.scale(np.float32(0.5)), "scale(step_size=np.float32(0.5))"),
    (lambda: optchain.identity(), "identity()"),
    (lambda: optchain.chain(), "chain()"),
    (
        lambda: optchain.chain(optchain.clip_by_global_norm(1.0), optchain.sgd(0.1)),
        "chain(clip_by_global_norm(max_norm=1.0), sgd(learning_rate=0.1))",
    ),
    (
        lambda: optchain.named_chain(("clip", optchain.clip(1)), ("rule", optchain.sgd(0.1, 0.9, True))),
        "named_chain(('clip', clip(max_delta=1)), ('rule', sgd(learning_rate=0.1, momentum=0.9, nesterov=True)))",
    ),
    (lambda: optchain.adam(1e-3, 0.9, b2=0.99), "adam(learning_rate=0.001, b2=0.99)"),
    (lambda: optchain.adam(1e-3, 0.9, 0.999, 1e-8), "adam(learning_rate=0.001)"),
    (
        lambda: optchain.adamw(0.1, mu_dtype=jnp.bfloat16, weight_decay=0.0),
        "adamw(learning_rate=0.1, mu_dtype='bfloat16', weight_decay=0.0)",
    ),
    (
        lambda: optchain.adaptive_grad_clip(0.1, axis=(0,)),
        "adaptive_grad_clip(clipping=0.1, axis=(0,))",
    ),
    (
        lambda: optchain.masked(optchain.scale(2.0), {"a": [True, False], "b": ()}),
        "masked(inner=scale(step_size=2.0), mask={'a': [True, False], 'b': ()})",
    ),
    (
        lambda: optchain.partition({"x": optchain.sgd(0.1), 1: optchain.set_to_zero()}, {"a": "x", "b": 1}),
        "partition(transforms={'x': sgd(learning_rate=0.1), 1: set_to_zero()}, param_labels={'a': 'x', 'b': 1})",
    ),
]
PLAIN_IDS = [text for _, text in PLAIN]


@pytest.mark.parametrize(("build", "text"), PLAIN, ids=PLAIN_IDS)
def test_repr_reads_like_the_call_and_evaluates_to_an_equal_transform(build, text):
    tx = build()
    assert repr(tx) == text
    assert eval(text, dict(NAMES)) == tx


@pytest.mark.parametrize(("build", "text"), PLAIN, ids=PLAIN_IDS)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda tx: pickle.loads(pickle.dumps(tx)), None])
def test_equal_calls_and_copies_are_equal(build, text, again):
    tx = build()
    other = again(tx) if again else build()
    assert tx == other
    assert not (tx != other)  # noqa: SIM202
    assert hash(tx) == hash(other)
    assert (repr(other), other.name, other.sign) == (text, tx.name, tx.sign)
    assert isinstance(other, optchain.GradientTransformationExtraArgs)
    assert other.links == tx.links


def test_copies_work_when_the_original_is_gone():
    data = pickle.dumps(optchain.chain(optchain.clip(0.123456), optchain.adam(0.654321, mu_dtype="bfloat16")))
    for i in range(300):  # more than are kept alive
        optchain.scale(i)
    gc.collect()
    tx = pickle.loads(data)
    assert repr(tx) == "chain(clip(max_delta=0.123456), adam(learning_rate=0.654321, mu_dtype='bfloat16'))"
    params = jnp.array([1.0])
    updates, _ = tx.update(jnp.array([5.0]), tx.init(params), params)
    np.testing.assert_allclose(updates, [-0.654321], rtol=1e-5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (1.0, True),
        (0, False),
        (0.0, -0.0),
        (1.0, 1 + 0j),
        (1.0, np.float32(1.0)),
        (np.float32(1.0), np.float64(1.0)),
        (1.0, np.nextafter(1.0, 2.0).item()),
    ],
)
def test_values_of_other_types_make_other_transforms(one, other):
    assert optchain.scale(one) != optchain.scale(other)
    assert optchain.scale(one) == optchain.scale(one)
    assert boost(1.0, (one, [2])) != boost(1.0, (other, [2]))
    assert boost(1.0, label={"a": one}) != boost(1.0, label={"a": other})
    assert optchain.masked(optchain.scale(one), True) != optchain.masked(optchain.scale(other), True)


def test_containers_of_other_types_make_other_transforms():
    assert boost(1.0, [1, 2]) != boost(1.0, (1, 2))
    assert boost(1.0, [1, 2]) == boost(1.0, [1, 2])
    assert boost(1.0, {"a": 1, "b": 2}) == boost(1.0, {"b": 2, "a": 1})


def test_builders_are_told_apart():
    assert optchain.clip(1.0) != optchain.clip_by_global_norm(1.0)
    assert optchain.chain(optchain.sgd(0.1)) != optchain.sgd(0.1)
    assert optchain.scale(0.1) != 0.1
    assert optchain.scale_by_adam() != optchain.scale_by_adam(nesterov=True)


def test_nan_is_equal_to_itself_as_an_argument():
    assert optchain.scale(float("nan")) == optchain.scale(float("nan"))
    assert optchain.scale(np.float32("nan")) == optchain.scale(np.float32("nan"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: optchain.sgd(0.1), lambda: optchain.sgd(learning_rate=0.1)),
        (lambda: optchain.sgd(0.1), lambda: optchain.sgd(0.1, None, False, accumulator_dtype=None)),
        (lambda: optchain.adam(0.1, 0.9, 0.999), lambda: optchain.adam(b2=0.999, learning_rate=0.1)),
        (lambda: boost(), lambda: boost(2.0, label="plain")),
        (lambda: boost(2.0, x=1, y=2), lambda: boost(2.0, y=2, x=1)),
        (lambda: optchain.adam(0.1, mu_dtype="bfloat16"), lambda: optchain.adam(0.1, mu_dtype=jnp.bfloat16)),
        (lambda: optchain.adam(0.1, mu_dtype="bfloat16"), lambda: optchain.adam(0.1, mu_dtype=np.dtype("bfloat16"))),
        (lambda: optchain.adam(0.1, mu_dtype="bfloat16"), lambda: optchain.adam(0.1, mu_dtype=ml_dtypes.bfloat16)),
        (lambda: optchain.trace(0.9, False, np.float32), lambda: optchain.trace(0.9, accumulator_dtype="float32")),
        (lambda: optchain.trace(0.9, False, jnp.float32), lambda: optchain.trace(0.9, accumulator_dtype="f4")),
    ],
)
def test_spellings_of_one_call_are_one_value(one, other):
    first, second = one(), other()
    assert first == second
    assert hash(first) == hash(second)
    assert repr(first) == repr(second)


def test_hyperparameters_hold_the_defaults():
    tx = optchain.scale_by_adam(eps=1e-6, mu_dtype="bfloat16")
    assert tx.name == "scale_by_adam"
    assert tx.hyperparameters == {
        "b1": 0.9,
        "b2": 0.999,
        "eps": 1e-6,
        "eps_root": 0.0,
        "mu_dtype": np.dtype("bfloat16"),
        "nesterov": False,
        "nu_dtype": None,
    }
    assert tx.links == ()
    assert optchain.chain(tx).hyperparameters == {"transforms": (tx,)}


def test_links_of_a_finished_optimizer():
    tx = optchain.adamw(0.1)
    assert tx.name == "adamw"
    assert [link.name for link in tx.links] == ["scale_by_adam", "add_decayed_weights", "scale_by_learning_rate"]
    assert [link.name for link in optchain.chain(optchain.clip(1.0), tx).links] == ["clip", "adamw"]


# Arguments that have no value of their own


def unhashable():
    return [
        jnp.float32(0.5),
        np.array(0.5),
        jnp.array([0.5])[0],
    ]


@pytest.mark.parametrize("number", unhashable(), ids=lambda x: type(x).__name__)
def test_array_arguments_keep_their_identity(number):
    tx = optchain.scale(number)
    assert tx == tx
    assert tx != optchain.scale(number)
    assert len({tx, tx, optchain.scale(number)}) == 2
    assert "scale(step_size=" in repr(tx)
    updates, _ = tx.update(jnp.array([2.0]), tx.init(jnp.ones(1)))
    np.testing.assert_array_equal(updates, [1.0])
    np.testing.assert_array_equal(copy.deepcopy(tx).update(jnp.array([2.0]), optchain.EmptyState())[0], [1.0])
    again = pickle.loads(pickle.dumps(tx))
    np.testing.assert_array_equal(again.update(jnp.array([2.0]), optchain.EmptyState())[0], [1.0])


def test_masks_of_arrays_and_other_trees_keep_their_identity():
    mask = Batch(w=np.True_, b=np.array(False))
    labels = {"w": ["a", jnp.ones(2)]}
    for build in (lambda: boost(1.0, mask), lambda: boost(1.0, labels), lambda: boost(1.0, {1, 2})):
        tx = build()
        assert tx != build()
        assert {tx: 1}[tx] == 1
        assert repr(tx).startswith("boost(1.0, ")


def test_an_array_shows_its_dtype_and_shape_alone():
    assert repr(boost(1.0, jnp.ones((3, 2)))) == "boost(1.0, <float32[3,2]>)"


def test_tracers_are_arguments_like_others():
    seen = []

    @jax.jit
    def step(rate, gradient):
        tx = optchain.chain(optchain.clip(10.0), optchain.sgd(rate))
        seen.append(repr(tx))
        return tx.update(gradient, tx.init(gradient))[0]

    np.testing.assert_allclose(step(0.5, jnp.array([2.0])), [-1.0])
    np.testing.assert_allclose(step(0.25, jnp.array([2.0])), [-0.5])
    assert len(seen) == 1
    assert "sgd(learning_rate=" in seen[0]
    np.testing.assert_allclose(jax.grad(lambda rate: step(rate, jnp.array([2.0]))[0])(0.5), -2.0)


# Containers are values


def test_a_later_change_of_the_callers_containers_changes_nothing():
    mask = {"a": True, "b": [True, False]}
    tx = optchain.masked(optchain.scale(2.0), mask)
    equal = optchain.masked(optchain.scale(2.0), {"a": True, "b": [True, False]})
    mask["a"] = False
    mask["b"][1] = True
    assert tx == equal
    assert repr(tx) == "masked(inner=scale(step_size=2.0), mask={'a': True, 'b': [True, False]})"
    params = {"a": jnp.ones(1), "b": [jnp.ones(1), jnp.ones(1)]}
    updates, _ = tx.update(params, tx.init(params))
    assert jax.tree.map(jnp.sum, updates) == {"a": 2.0, "b": [2.0, 1.0]}


def test_a_later_change_of_the_transforms_of_a_partition_changes_nothing():
    transforms = {"x": optchain.scale(2.0)}
    tx = optchain.partition(transforms, "x")
    transforms["x"] = optchain.scale(3.0)
    assert tx == optchain.partition({"x": optchain.scale(2.0)}, "x")
    assert tx.update(jnp.ones(1), tx.init(jnp.ones(1)))[0] == 2.0


def test_a_change_of_the_hyperparameters_that_were_read_changes_nothing():
    tx = optchain.masked(optchain.scale(2.0), {"a": True, "b": [True]})
    read = tx.hyperparameters
    read["inner"] = None
    read["mask"]["a"] = False
    read["mask"]["b"].append(False)
    assert repr(tx) == "masked(inner=scale(step_size=2.0), mask={'a': True, 'b': [True]})"
    assert tx.hyperparameters["mask"] == {"a": True, "b": [True]}


# Calls that do not fit


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optchain.scale(), r"scale: missing a required argument: 'step_size'; call it as scale\(step_size"),
        (lambda: optchain.scale(1.0, 2.0), r"scale: too many positional arguments; call it as scale\("),
        (lambda: optchain.sgd(0.1, momentun=0.9), r"sgd: .*'momentun'.*; call it as sgd\(learning_rate"),
        (lambda: descend(), r"descend: missing a required argument: 'rate'; call it as descend\(rate, times=1\)"),
        (lambda: halving(), r"halving: missing a required argument: 'value'; call it as halving\(value, every=1\)"),
    ],
)
def test_a_call_that_does_not_fit_names_the_builder(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_an_unknown_dtype_is_refused_by_name():
    with pytest.raises((TypeError, ValueError), match="adam"):
        optchain.adam(0.1, mu_dtype="bfloat61")


# Transforms and schedules of a user's own


def test_a_transform_of_the_users_own_is_a_value():
    tx = descend(0.5, times=2)
    assert repr(tx) == "descend(rate=0.5, times=2)"
    assert descend(0.5) != tx
    assert descend(0.5, 2) == tx == copy.deepcopy(tx) == pickle.loads(pickle.dumps(tx))
    assert (tx.name, tx.sign, tx.hyperparameters) == ("descend", -1, {"rate": 0.5, "times": 2})
    assert boost.__doc__ == "A transform of a user's own."
    assert boost.__name__ == "boost"
    np.testing.assert_array_equal(tx.update(jnp.array([0.25, 4.0]), tx.init(jnp.ones(2)))[0], [-0.25, -1.0])


def test_variable_arguments_are_shown_as_they_are_called():
    tx = boost(3.0, 1, "x", label=None, extra=0.5)
    assert repr(tx) == "boost(3.0, 1, 'x', label=None, extra=0.5)"
    assert eval(repr(tx), {"boost": boost}) == tx
    assert repr(boost(3.0, label="y", extra=0.5)) == "boost(factor=3.0, label='y', extra=0.5)"


def test_a_transform_around_a_pair_written_by_hand():
    @optchain.transform
    def shift(by):
        def update(updates, state, params=None, **extra_args):
            return jax.tree.map(lambda u: u + by, updates), state

        return optchain.GradientTransformationExtraArgs(lambda params: (), update)

    assert repr(shift(2)) == "shift(by=2)"
    assert shift(2) == shift(2) != shift(3)
    assert shift(2).sign is None
    tx = optchain.chain(shift(2.0), optchain.scale(3.0))
    assert tx.update(jnp.ones(1), tx.init(jnp.ones(1)))[0] == 9.0


def test_a_failing_builder_raises_its_own_error_each_time():
    @optchain.transform
    def picky(value):
        raise ValueError(f"picky: {value} will not do")

    for _ in range(2):
        with pytest.raises(ValueError, match="picky: 3 will not do"):
            picky(3)


def test_schedules_are_values():
    schedule = halving(1.0, every=2)
    assert schedule == halving(1.0, 2) == copy.deepcopy(schedule) == pickle.loads(pickle.dumps(schedule))
    assert hash(schedule) == hash(halving(1.0, every=2))
    assert schedule != halving(1, every=2)
    assert repr(schedule) == "halving(value=1.0, every=2)"
    assert (schedule.name, schedule.hyperparameters) == ("halving", {"value": 1.0, "every": 2})
    assert [schedule(i) for i in range(4)] == [1.0, 1.0, 0.5, 0.5]


def test_a_transform_with_a_schedule_is_a_value():
    tx = optchain.sgd(halving(1.0))
    assert repr(tx) == "sgd(learning_rate=halving(value=1.0))"
    assert optchain.sgd(halving(1.0)) == tx == copy.deepcopy(tx) == pickle.loads(pickle.dumps(tx))
    assert optchain.sgd(halving(0.5)) != tx
    assert eval(repr(tx), {"halving": halving, "sgd": optchain.sgd}) == tx


def test_functions_are_compared_by_identity_and_shown_by_name():
    assert optchain.masked(optchain.scale(1.0), mask_of_weights) == optchain.masked(
        optchain.scale(1.0), mask_of_weights
    )
    assert optchain.masked(optchain.scale(1.0), lambda t: t) != optchain.masked(optchain.scale(1.0), lambda t: t)
    assert repr(optchain.masked(optchain.scale(1.0), mask_of_weights)) == (
        "masked(inner=scale(step_size=1.0), mask=mask_of_weights)"
    )
    assert repr(optchain.sgd(lambda count: 0.1)) == "sgd(learning_rate=<lambda>)"
