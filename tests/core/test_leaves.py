"""`leafwise`: from a function of arrays to a transform over pytrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain
from optchain import Slot, chain, leafwise, scale
from tests.core.averages import (
    GRADS,
    PARAMS,
    AverageState,
    CountOnly,
    SlotOnly,
    average,
    average_reference,
    average_rule,
    share_of_total,
)


def keep_rule(u, p, m):
    return u, m


def keep(**slot):
    return leafwise(keep_rule, SlotOnly, slots={"m": Slot(**slot)})


# The contract


def test_init_makes_slots_like_the_parameters_and_a_count():
    state = average().init(PARAMS)
    assert isinstance(state, AverageState)
    assert (state.step.dtype, state.step.shape, int(state.step)) == (jnp.int32, (), 0)
    for slot in (state.slow, state.square):
        assert jax.tree.structure(slot) == jax.tree.structure(PARAMS)
        for x, p in zip(jax.tree.leaves(slot), jax.tree.leaves(PARAMS), strict=True):
            assert (x.shape, x.dtype, x.weak_type) == (p.shape, p.dtype, False)
            assert not np.any(x)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("power", [2, 1])
def test_the_rule_gets_its_leaf_scalars_and_static_arguments(wrap, power):
    tx = average(0.3, 0.7, pull=0.2, power=power)
    state, update = tx.init(PARAMS), wrap(tx.update)
    gradients = [jax.tree.map(lambda g, k=k: g * (-1.0) ** k + k, GRADS) for k in range(4)]
    updates = []
    for gradient in gradients:
        new, state = update(gradient, state, PARAMS)
        assert jax.tree.structure(new) == jax.tree.structure(PARAMS)
        updates.append(jax.tree.leaves(new))
    assert int(state.step) == 4
    columns = zip(*map(jax.tree.leaves, gradients), strict=True)
    for i, (p, column) in enumerate(zip(jax.tree.leaves(PARAMS), columns, strict=True)):
        expected = average_reference(column, p, 0.3, 0.7, 0.2, power)
        for new, wanted in zip(updates, expected, strict=True):
            np.testing.assert_allclose(new[i], wanted, rtol=2e-6)


def test_tree_scalars_reduce_over_the_whole_tree():
    tx = share_of_total()
    updates, state = jax.jit(tx.update)({"a": jnp.array([1.0, 2.0]), "b": jnp.float32(5.0)}, tx.init(PARAMS))
    np.testing.assert_allclose(updates["a"], [0.125, 0.25])
    assert updates["b"] == 0.625
    assert state == optchain.EmptyState()


def test_tree_scalars_see_updates_state_and_parameters():
    def tree_scalars(updates, state, params):
        return dict(factor=updates["a"][0] * 100 + params["a"][0] * 10 + state.t)

    def factor_rule(u, p, *, factor, half):
        assert p is not None
        return factor * half + 0 * u

    tx = leafwise(
        factor_rule,
        CountOnly,
        scalars=lambda state: dict(half=0.5),
        tree_scalars=tree_scalars,
        needs_params=True,
    )
    params, gradient = {"a": jnp.array([3.0])}, {"a": jnp.array([2.0])}
    state = tx.init(params)
    _, state = tx.update(gradient, state, params)
    updates, state = tx.update(gradient, state, params)
    assert updates["a"][0] == 115.5
    assert int(state.t) == 2


def test_the_parameter_is_none_unless_it_is_asked_for():
    seen = []

    def note_rule(u, p):
        seen.append(p)
        return u

    tx = leafwise(note_rule)
    tx.update(GRADS, tx.init(PARAMS), PARAMS)
    assert set(seen) == {None}


def test_a_rule_may_reduce_within_its_leaf():
    def direction_rule(u, p):
        return u / jnp.sqrt(jnp.sum(u * u))

    tx = leafwise(direction_rule)
    updates, _ = tx.update({"a": jnp.array([3.0, 4.0]), "b": jnp.array([[5.0], [12.0]])}, tx.init(PARAMS))
    np.testing.assert_allclose(updates["a"], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(updates["b"], [[5 / 13], [12 / 13]], rtol=1e-6)


def test_the_fields_of_the_state_are_slots_and_at_most_one_count():
    with pytest.raises(TypeError, match=r"leafwise: .*AverageState"):
        leafwise(average_rule, AverageState, slots=("slow",))
    with pytest.raises(TypeError, match=r"leafwise: .*SlotOnly"):
        leafwise(average_rule, SlotOnly, slots=("m", "more"))


def test_the_count_stays_at_its_largest_value():
    tx = leafwise(lambda u, p: u, CountOnly)
    top = jnp.iinfo(jnp.int32).max
    _, state = tx.update(GRADS, CountOnly(jnp.int32(top - 1)))
    assert state.t == top
    _, state = tx.update(GRADS, state)
    assert (state.t, state.t.dtype) == (top, jnp.int32)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (np.int32(3), np.int32(4)),
        (np.uint8(255), np.uint8(255)),
        (np.int32(2**31 - 1), np.int32(2**31 - 1)),
        (np.float32(0.5), np.float32(1.5)),
        (np.finfo(np.float32).max, np.finfo(np.float32).max),
    ],
)
def test_safe_increment(count, expected):
    new = optchain.safe_increment(count)
    assert (new, new.dtype) == (expected, np.asarray(expected).dtype)


def test_safe_increment_refuses_what_does_not_count():
    with pytest.raises(ValueError, match="safe_increment: bool"):
        optchain.safe_increment(True)


# Dtypes


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.complex64])
def test_updates_keep_the_dtype_of_the_gradient_and_slots_their_own(dtype):
    params = jnp.ones(3, dtype)
    for gradient_dtype in {dtype, jnp.complex64 if dtype == jnp.complex64 else jnp.bfloat16}:
        tx = optchain.scale_by_adam()
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(jnp.ones(3, gradient_dtype), state)
        assert updates.dtype == gradient_dtype
        assert state.mu.dtype == dtype
        assert state.nu.dtype == jnp.float32


@pytest.mark.parametrize(
    ("slot", "param", "expected"),
    [
        (Slot(), jnp.float32, jnp.float32),
        (Slot(), jnp.bfloat16, jnp.bfloat16),
        (Slot(), jnp.complex64, jnp.complex64),
        (Slot("bfloat16"), jnp.float32, jnp.bfloat16),
        (Slot(jnp.float32), jnp.float16, jnp.float32),
        (Slot(jnp.float32), jnp.complex64, jnp.complex64),
        (Slot(squared=True), jnp.float32, jnp.float32),
        (Slot(squared=True), jnp.float16, jnp.float32),
        (Slot(squared=True), jnp.complex64, jnp.float32),
        (Slot("bfloat16", squared=True), jnp.float32, jnp.bfloat16),
        (Slot("bfloat16", squared=True), jnp.complex64, jnp.bfloat16),
        (Slot("float64"), jnp.float32, jnp.float32),  # what JAX stores without x64
    ],
)
def test_what_a_slot_is_stored_in(slot, param, expected):
    state = leafwise(keep_rule, SlotOnly, slots={"m": slot}).init({"a": jnp.ones((2, 3), param)})
    assert (state.m["a"].dtype, state.m["a"].shape) == (expected, (2, 3))


def test_what_a_slot_is_stored_in_under_x64():
    with jax.enable_x64(True):
        params = {"d": jnp.ones(2, jnp.float64), "s": jnp.ones(2, jnp.float32), "c": jnp.ones(2, jnp.complex128)}
        dtypes = {
            name: jax.tree.map(lambda x: x.dtype.name, keep(**slot).init(params).m)
            for name, slot in dict(
                plain={}, squared={"squared": True}, double={"dtype": "float64"}, single={"dtype": "float32"}
            ).items()
        }
    assert dtypes == {
        "plain": {"d": "float64", "s": "float32", "c": "complex128"},
        "squared": {"d": "float64", "s": "float32", "c": "float64"},
        "double": {"d": "float64", "s": "float64", "c": "complex128"},
        "single": {"d": "float32", "s": "float32", "c": "complex64"},
    }


def test_a_slot_starts_with_its_fill():
    state = keep(fill=0.25).init({"a": jnp.ones(2), "b": jnp.ones((), jnp.bfloat16)})
    np.testing.assert_array_equal(state.m["a"], [0.25, 0.25])
    assert state.m["b"] == 0.25


def test_double_precision_stays_under_x64_and_single_stays_single():
    with jax.enable_x64(True):
        params = {"d": jnp.array([1.0, 2.0], jnp.float64), "s": jnp.array([1.0, 2.0], jnp.float32)}
        tx = average(1 / 3, 1 / 7, pull=1 / 11)
        state, got = tx.init(params), []
        for k in range(3):
            updates, state = jax.jit(tx.update)(jax.tree.map(lambda p, k=k: p / (k + 3), params), state, params)
            got.append(updates)
            assert jax.tree.map(lambda x: x.dtype.name, updates) == {"d": "float64", "s": "float32"}
        assert jax.tree.map(lambda x: x.dtype.name, state.slow) == {"d": "float64", "s": "float32"}
        assert state.step.dtype == jnp.int32
        gradients = [np.array([1.0, 2.0]) / (k + 3) for k in range(3)]
        expected = average_reference(gradients, params["d"], 1 / 3, 1 / 7, 1 / 11)
        for updates, wanted in zip(got, expected, strict=True):
            np.testing.assert_allclose(updates["d"], wanted, rtol=1e-14)
            np.testing.assert_allclose(updates["s"], wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_the_float32_result_rounded_once(dtype):
    gradient, params = jnp.array([0.3, -1.7, 2.9], dtype), jnp.array([0.7, 0.1, -0.2], dtype)
    tx = average()
    half, _ = tx.update(gradient, tx.init(params), params)
    single = gradient.astype(jnp.float32), params.astype(jnp.float32)
    full, _ = tx.update(single[0], tx.init(single[1]), single[1])
    np.testing.assert_array_equal(half, full.astype(dtype))


def test_python_numbers_are_leaves():
    tx = chain(optchain.trace(0.5), scale(-2.0))
    state = tx.init({"a": 1.0, "b": 2})
    assert (state[0].trace["a"].dtype, state[0].trace["a"].shape) == (jnp.float32, ())
    updates, state = tx.update({"a": 3.0, "b": 1}, state)
    assert jax.tree.map(float, updates) == {"a": -6.0, "b": -2.0}
    assert not updates["a"].weak_type


def test_weak_types_do_not_leak_into_updates_or_state():
    params = {"a": jnp.asarray(2.0), "b": jnp.asarray(1.5) * jnp.ones(2)}
    assert params["a"].weak_type
    tx = chain(optchain.clip_by_global_norm(1.0), optchain.adamw(0.1), scale(0.5))
    state = tx.init(params)
    for wrap in (lambda f: f, jax.jit):
        updates, new = wrap(tx.update)(params, state, params)
        assert not any(x.weak_type for x in jax.tree.leaves((updates, state, new)))


def test_init_shares_no_memory():
    params = {"a": jnp.ones(4), "b": jnp.ones(4)}
    state = optchain.scale_by_adam().init(params)
    leaves = jax.tree.leaves((params, state))
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


# Hyperparameters


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "number",
    [2, 2.0, np.float32(2.0), np.float64(2.0), np.int64(2), jnp.float32(2.0), jnp.bfloat16(2.0), jnp.int32(2)],
    ids=lambda x: type(x).__name__ + str(getattr(x, "dtype", "")),
)
def test_any_scalar_is_a_hyperparameter(wrap, number):
    tx = scale(number)
    for dtype in (jnp.float32, jnp.bfloat16):
        updates, _ = wrap(tx.update)(jnp.array([1.5], dtype), tx.init(jnp.ones(1)))
        assert (updates[0], updates.dtype) == (3.0, dtype)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("number", [3_000_000_000, -(2**40)])
def test_a_large_integer_is_a_number_like_others(wrap, number):
    tx = scale(number)
    updates, _ = wrap(tx.update)(jnp.array([2.0]), tx.init(jnp.ones(1)))
    np.testing.assert_allclose(updates, [2.0 * number], rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("number", "leaf"),
    [
        (jnp.ones(3), jnp.ones((2, 3))),
        (jnp.ones((2, 1)), jnp.ones((2, 3))),
        (np.ones(3), jnp.ones(3)),
        (jnp.ones((2, 3)), jnp.ones(3)),
        (jnp.ones(3), jnp.float32(1.0)),
        (jnp.ones(1), jnp.float32(1.0)),
    ],
    ids=lambda x: str(x.shape),
)
def test_an_array_is_no_hyperparameter(wrap, number, leaf):
    tx = optchain.sgd(number)
    with pytest.raises(ValueError, match=r"scale_by_learning_rate: .*must be a scalar"):
        wrap(tx.update)({"a": leaf}, tx.init({"a": leaf}))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_complex_results_for_a_real_leaf_are_refused(wrap):
    tx = chain(optchain.clip(1.0), scale(1j))
    with pytest.raises(TypeError, match=r"^scale: the rule made complex values for a real leaf"):
        wrap(tx.update)({"a": jnp.ones(2)}, tx.init({"a": jnp.ones(2)}))
    updates, _ = wrap(tx.update)((), tx.init(()))
    assert updates == ()
    tx = scale(1j)
    updates, _ = wrap(tx.update)(jnp.array([2.0 + 1j]), tx.init(jnp.ones(1, jnp.complex64)))
    assert updates[0] == -1 + 2j


def test_the_error_names_the_link_that_made_the_result():
    tx = chain(scale(2.0), scale(1j), optchain.trace(0.5))
    with pytest.raises(TypeError, match="scale: the rule made complex values"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    with pytest.raises(ValueError, match=r"trace: decay is float32\[3\]; .* must be a scalar"):
        optchain.trace(jnp.ones(3)).update(jnp.float32(1.0), optchain.trace(jnp.ones(3)).init(jnp.float32(1.0)))
