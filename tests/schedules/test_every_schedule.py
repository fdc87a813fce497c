"""What holds for every schedule: counts of any kind, transformations of JAX, dtypes, and schedules as values."""

import copy
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optchain.schedules as sch

NAMES = {name: getattr(sch, name) for name in dir(sch) if name.endswith(("_schedule", "_decay", "_schedules"))}

CALLS = [
    ("linear_schedule", dict(init_value=1.0, end_value=0.1, transition_steps=10, transition_begin=2)),
    ("linear_schedule", dict(init_value=1.0, end_value=0.1, transition_steps=0)),
    ("polynomial_schedule", dict(init_value=1.0, end_value=0.1, power=2, transition_steps=10)),
    ("polynomial_schedule", dict(init_value=1.0, end_value=0.1, power=2, transition_steps=-1)),
    ("cosine_decay_schedule", dict(init_value=1.0, decay_steps=10, alpha=0.1)),
    ("cosine_decay_schedule", dict(init_value=1, decay_steps=1, end_value=0.1)),
    ("exponential_decay", dict(init_value=1.0, transition_steps=4, decay_rate=0.5)),
    ("exponential_decay", dict(init_value=1.0, transition_steps=4, decay_rate=0.5, staircase=True, end_value=0.2)),
    ("exponential_decay", dict(init_value=1.0, transition_steps=0, decay_rate=0.0)),
    ("piecewise_constant_schedule", dict(init_value=1.0)),
    ("piecewise_constant_schedule", dict(init_value=1.0, boundaries_and_scales={0: 0.5, 7: 2.0})),
    ("piecewise_interpolate_schedule", dict(interpolate_type="linear", init_value=1.0)),
    (
        "piecewise_interpolate_schedule",
        dict(interpolate_type="cosine", init_value=1.0, boundaries_and_scales={0: 0.5, 7: 2.0}),
    ),
    ("linear_onecycle_schedule", dict(transition_steps=20, peak_value=1.0)),
    ("linear_onecycle_schedule", dict(transition_steps=1, peak_value=1.0)),
    ("cosine_onecycle_schedule", dict(transition_steps=20, peak_value=1.0)),
    ("cosine_onecycle_schedule", dict(transition_steps=1, peak_value=1.0, end_value=0.5)),
    ("warmup_constant_schedule", dict(init_value=0.0, peak_value=1.0, warmup_steps=5)),
    ("warmup_constant_schedule", dict(init_value=0.0, peak_value=1.0, warmup_steps=0)),
    ("warmup_cosine_decay_schedule", dict(init_value=0.0, peak_value=1.0, warmup_steps=5, decay_steps=20)),
    ("warmup_cosine_decay_schedule", dict(init_value=0.0, peak_value=0.0, warmup_steps=0, decay_steps=1)),
    (
        "warmup_exponential_decay_schedule",
        dict(init_value=0.0, peak_value=1.0, warmup_steps=5, transition_steps=3, decay_rate=0.5),
    ),
    (
        "warmup_exponential_decay_schedule",
        dict(init_value=0.0, peak_value=1.0, warmup_steps=0, transition_steps=0, decay_rate=0.5),
    ),
    ("join_schedules", dict(schedules=[sch.linear_schedule(0.0, 1.0, 3), sch.constant_schedule(1.0)], boundaries=[3])),
    ("sgdr_schedule", dict(cosine_kwargs=[dict(init_value=0.0, peak_value=1.0, warmup_steps=2, decay_steps=6)] * 2)),
]
EVERY = pytest.mark.parametrize(("name", "arguments"), CALLS)


def test_every_schedule_is_listed():
    assert {name for name, _ in CALLS} == set(NAMES) - {"constant_schedule"}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_the_known_ones(name):
    own = inspect.signature(NAMES[name]).parameters.values()
    own = [(p.name, p.default) for p in own if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert own == [(p.name, p.default) for p in inspect.signature(getattr(optax, name)).parameters.values()]


@EVERY
def test_counts_of_every_kind_give_the_same(name, arguments):
    made = NAMES[name](**arguments)
    expected = np.array([made(t) for t in range(24)])
    assert expected.shape == (24,)
    assert np.isfinite(expected).all()
    for kind in (np.int8, np.uint32, np.int64, jnp.int32, jnp.float32):
        value = made(kind(9))
        assert (value.dtype, value.shape) == (jnp.float32, ())
        np.testing.assert_array_equal(value, expected[9], err_msg=str(kind))
    grid = made(jnp.arange(24).reshape(2, 3, 4))
    assert grid.dtype == jnp.float32
    for found in (grid.ravel(), jax.jit(made)(np.arange(24)), jax.vmap(made)(jnp.arange(24))):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose([jax.jit(made)(t) for t in (0, 9, 23)], expected[[0, 9, 23]], rtol=1e-6, atol=1e-9)


@EVERY
def test_counts_beyond_int32(name, arguments):
    made = NAMES[name](**arguments)
    end = made(2**31 - 1)
    assert np.isfinite(end)
    np.testing.assert_array_equal(made(2**31), end)
    np.testing.assert_array_equal(made(10**12), end)


@EVERY
def test_the_slope_by_a_count_is_finite(name, arguments):
    slopes = jax.vmap(jax.grad(lambda t: NAMES[name](**arguments)(t) * 1.0))(jnp.linspace(0.0, 30.0, 61))
    assert np.isfinite(slopes).all()


@EVERY
def test_dtypes_under_x64(name, arguments):
    with jax.enable_x64(True):
        for count in (3, jnp.int32(3), jnp.int64(3), jnp.arange(3)):
            assert NAMES[name](**arguments)(count).dtype == jnp.float64
        if name in ("join_schedules", "sgdr_schedule"):
            return
        single = {k: jnp.float32(v) if isinstance(v, float) else v for k, v in arguments.items()}
        assert NAMES[name](**single)(jnp.int64(3)).dtype == jnp.float32
        double = {k: np.float64(v) if isinstance(v, float) else v for k, v in arguments.items()}
        assert NAMES[name](**double)(jnp.int32(3)).dtype == jnp.float64


def test_half_precision_settings_give_float32():
    made = sch.linear_schedule(jnp.bfloat16(1.0), jnp.bfloat16(0.0), 10)
    assert made(3).dtype == jnp.float32
    np.testing.assert_allclose(made(3), 0.7, rtol=1e-6)


@EVERY
def test_a_schedule_is_a_value(name, arguments):
    made, again = NAMES[name](**arguments), NAMES[name](**copy.deepcopy(arguments))
    assert made == again
    assert hash(made) == hash(again)
    assert made == NAMES[name](*[arguments[p] for p in inspect.signature(NAMES[name]).parameters if p in arguments][:1],
                               **dict(list(arguments.items())[1:]))  # fmt: skip
    assert eval(repr(made), dict(NAMES)) == made
    assert repr(made).startswith(f"{name}(")
    for copied in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert copied == made
    assert made.hyperparameters.items() >= arguments.items()


def test_other_arguments_make_another_schedule():
    made = sch.linear_schedule(1.0, 0.0, 10)
    assert made != sch.linear_schedule(1.0, 0.0, 11)
    assert made != sch.linear_schedule(1, 0.0, 10)
    assert made != sch.polynomial_schedule(1.0, 0.0, 1, 10)
    assert sch.piecewise_constant_schedule(1.0, {1: 0.5}) != sch.piecewise_constant_schedule(1.0, {2: 0.5})


def test_a_schedule_is_a_static_argument_that_compiles_once():
    traces = []

    @jax.jit
    def plain(count):
        return count

    def value(made, count):
        traces.append(made)
        return made(plain(count))

    compiled = jax.jit(value, static_argnums=0)
    first = compiled(sch.cosine_decay_schedule(1.0, 10), 5)
    second = compiled(sch.cosine_decay_schedule(1.0, 10), 5)
    assert len(traces) == 1
    np.testing.assert_array_equal(first, second)


def test_settings_that_are_arrays_or_traced():
    made = sch.linear_schedule(jnp.float32(1.0), 0.0, 10)
    assert made != sch.linear_schedule(jnp.float32(1.0), 0.0, 10)
    np.testing.assert_allclose(made(5), 0.5)
    steps = jax.jit(lambda n: sch.linear_schedule(1.0, 0.0, n)(5))
    np.testing.assert_allclose([steps(10), steps(20), steps(0)], [0.5, 0.75, 1.0])
    np.testing.assert_allclose(
        jax.vmap(lambda v: sch.cosine_decay_schedule(v, 10)(5))(jnp.arange(3.0)), [0.0, 0.5, 1.0]
    )
    joined = jax.jit(lambda b: sch.join_schedules([sch.constant_schedule(1.0), sch.constant_schedule(2.0)], [b])(5))
    np.testing.assert_array_equal([joined(5), joined(6)], [2.0, 1.0])


def test_another_number_compiles_nothing(caplog):
    with jax.log_compiles(True):
        sch.polynomial_schedule(1.0, 0.0, 2.5, 12)(np.arange(17))
        assert "Compiling" in caplog.text
        caplog.clear()
        for steps in range(5, 9):
            made = sch.polynomial_schedule(0.1 * steps, 0.01 * steps, 0.3 * steps, steps, transition_begin=steps)
            made(np.arange(17))
        assert "Compiling" not in caplog.text
