"""The compiled function of one leaf: what it computes in, what it returns, and what makes another one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optchain.core.kernels import FEW, canonical, check, dtype_of, kernel, run_each, widen
from tests.compiles import counting_compiles


def lerp_rule(u, p, m, *, rate, sharp=False):
    m = m + rate * (u - m)
    return (jnp.sign(m) if sharp else m), m


def scale_rule(u, p, *, factor):
    return factor * u


def decay_rule(u, p, *, rate):
    return u + rate * p


LERP = (lerp_rule, (), "lerp")
SHARP = (lerp_rule, (("sharp", True),), "lerp")
SCALE = (scale_rule, (), "scale")
DECAY = (decay_rule, (), "decay")


def test_rules_run_one_after_the_other():
    run = kernel((SCALE, LERP, DECAY))
    u, p, m = jnp.array([1.0, -3.0]), jnp.array([10.0, 20.0]), jnp.array([0.0, 1.0])
    x, rows = run(u, p, ((), (m,), ()), ({"factor": 2.0}, {"rate": 0.25}, {"rate": 0.1}))
    moved = np.array([0.0, 1.0]) + 0.25 * (2.0 * np.array([1.0, -3.0]) - np.array([0.0, 1.0]))
    np.testing.assert_allclose(rows[1][0], moved, rtol=1e-6)
    np.testing.assert_allclose(x, moved + 0.1 * np.array([10.0, 20.0]), rtol=1e-6)
    assert (rows[0], len(rows[1]), rows[2]) == ((), 1, ())


def test_equal_programs_share_a_kernel():
    assert kernel((SCALE, LERP)) is kernel((SCALE, LERP))
    assert kernel((SCALE, LERP)) is not kernel((LERP, SCALE))
    assert kernel((LERP,)) is not kernel((SHARP,))


def test_static_arguments_reach_the_rule():
    x, _ = kernel((SHARP,))(jnp.array([5.0, -2.0]), None, ((jnp.zeros(2),),), ({"rate": 0.5},))
    np.testing.assert_array_equal(x, [1.0, -1.0])


def test_one_compilation_for_each_shape_and_dtype():
    def factor_times_rule(u, p, *, factor):
        return factor * u + 0.0

    run = kernel(((factor_times_rule, (), "fresh"),))
    leaves = [jnp.ones(3), jnp.ones((3, 2)), jnp.ones(3, jnp.bfloat16)]
    factors = [jnp.asarray(0.5 + i) for i in range(4)]
    with counting_compiles() as compiled:
        for factor in factors:
            for leaf in leaves:
                run(leaf, None, ((),), ({"factor": factor},))
    assert len(compiled) == 3


def lerp_leaves(count):
    """Leaves of three kinds in turn: of two shapes, and of one shape in another dtype."""
    rng = np.random.default_rng(0)
    kinds = [((4,), np.float32), ((2, 2), np.float32), ((4,), jnp.bfloat16)]
    made = []
    for i in range(count):
        shape, dtype = kinds[i % 3]
        u, m = (jnp.asarray(rng.integers(-8, 8, shape), dtype) for _ in range(2))
        made.append((u, None, ((m,),)))
    return made


@pytest.mark.parametrize("count", [0, 1, 5, 3 * FEW - 3, 3 * FEW, 3 * FEW + 4])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_many_leaves_give_what_each_gives_alone(wrap, count):
    leaves, numbers = lerp_leaves(count), ({"rate": jnp.float32(0.25)},)
    made = wrap(lambda leaves: run_each(kernel((LERP,)), leaves, numbers))(leaves)
    assert len(made) == count
    for (u, _, ((m,),)), (x, ((new,),)) in zip(leaves, made, strict=True):
        # Small integers and a quarter: exact in every dtype here.
        expected = np.asarray(m, np.float64) + 0.25 * (np.asarray(u, np.float64) - np.asarray(m, np.float64))
        assert x.dtype == new.dtype == u.dtype
        np.testing.assert_array_equal(np.asarray(x, np.float64), expected)
        np.testing.assert_array_equal(np.asarray(new, np.float64), expected)


@pytest.mark.parametrize(("count", "calls"), [(FEW - 1, FEW - 1), (100, 100 // 8 + 100 % 8), (1024, 1024 // 32)])
def test_many_leaves_of_one_kind_go_several_to_a_call(count, calls):
    def step(leaves):
        return run_each(kernel((SCALE,)), [(u, None, ((),)) for u in leaves], ({"factor": 2.0},))

    assert len(jax.make_jaxpr(step)([jnp.ones(3)] * count).eqns) == calls


def test_leaves_on_different_devices_stay_there():
    one, two = jax.devices()[:2]
    leaves = [(jax.device_put(jnp.full(3, float(i)), (one, two)[i % 2]), None, ((),)) for i in range(2 * FEW)]
    made = run_each(kernel((SCALE,)), leaves, ({"factor": 2.0},))
    for i, (x, _) in enumerate(made):
        assert x.devices() == {(one, two)[i % 2]}
        np.testing.assert_array_equal(x, np.full(3, 2.0 * i))


def test_slots_and_parameters_on_different_devices():
    devices = jax.devices()[:2]
    leaves = []
    for i in range(2 * FEW):
        p, m = (jax.device_put(jnp.full(3, float(i)), devices[i % 2]) for _ in range(2))
        leaves.append((np.ones(3, np.float32), p, ((m,), ())))
    for i, (x, _) in enumerate(run_each(kernel((LERP, DECAY)), leaves, ({"rate": 0.5}, {"rate": 0.25}))):
        np.testing.assert_allclose(x, np.full(3, i + 0.5 * (1 - i) + 0.25 * i))


def test_leaves_of_mixed_kinds_compile_once_a_kind():
    def mixed_rule(u, p):
        return u + p

    kinds = [(jnp.float32, False), (jnp.bfloat16, False), (jnp.float32, True)]
    rng = np.random.default_rng(0)
    leaves = []
    for i in rng.integers(0, 3, 40 * FEW):
        dtype, weak = kinds[i]
        leaves.append((jnp.ones(()), jnp.asarray(1.0) if weak else jnp.ones((), dtype), ((),)))
    with counting_compiles() as compiled:
        run_each(kernel(((mixed_rule, (), "mixed"),)), leaves, ({},))
    assert len(compiled) <= 2 * len(kinds)  # a call of several, and one for what is left over


@pytest.mark.parametrize("leaf", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.complex64])
@pytest.mark.parametrize("slot", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_half_precision_is_widened_and_each_result_is_cast_to_what_it_replaces(leaf, slot):
    seen = []

    def rule(u, p, m, *, rate):
        seen.append((u.dtype, p.dtype, m.dtype, rate.dtype))
        return u, jnp.abs(u) + m

    wide = jnp.complex64 if leaf == jnp.complex64 else jnp.float32
    run = kernel(((rule, (), "rule"),))
    u = jnp.array([1.5], leaf)
    x, ((m,),) = run(u, jnp.ones(1, leaf), ((jnp.ones(1, slot),),), ({"rate": jnp.float16(0.5)},))
    assert seen == [(wide, wide, jnp.float32, jnp.float32)]
    assert (x.dtype, m.dtype) == (leaf, slot)
    assert (x[0], m[0]) == (1.5, 2.5)


def test_results_are_rounded_once():
    # In bfloat16 each step of this sum would round; in float32 it is exact until the end.
    def rule(u, p, *, a, b):
        return (u * a + b) - b

    u = jnp.array([1.0078125], jnp.bfloat16)
    x, _ = kernel(((rule, (), "rule"),))(u, None, ((),), ({"a": 1.0, "b": 256.0},))
    assert x[0] == u[0]


def test_double_precision_of_any_operand_of_the_leaf_is_kept_under_x64():
    seen = []

    def rule(u, p, m, *, rate):
        seen.append((u.dtype, m.dtype, rate.dtype))
        return rate * u, m + rate * u

    run = kernel(((rule, (), "rule"),))
    with jax.enable_x64(True):
        for leaf, slot in ((jnp.float64, jnp.float64), (jnp.float32, jnp.float64), (jnp.float32, jnp.float32)):
            x, ((m,),) = run(jnp.ones(1, leaf), None, ((jnp.zeros(1, slot),),), ({"rate": jnp.float64(1 / 3)},))
            assert (x.dtype, m.dtype) == (leaf, slot)
            np.testing.assert_allclose(m, 1 / 3, rtol=1e-15 if slot == jnp.float64 else 1e-7)
    assert seen == [(jnp.float64,) * 3, (jnp.float64,) * 3, (jnp.float32,) * 3]


def test_integers_and_bools_stay_what_they_are():
    seen = []

    def rule(u, p, *, n, flag):
        seen.append((n.dtype, flag.dtype))
        return jnp.where(flag, u**n, u)

    x, _ = kernel(((rule, (), "rule"),))(jnp.array([3.0]), None, ((),), ({"n": 2, "flag": True},))
    assert x[0] == 9.0
    assert [(jnp.issubdtype(n, jnp.integer), flag) for n, flag in seen] == [(True, jnp.bool_)]


def test_none_and_nested_operands_pass():
    def rule(u, p, *, pair, nothing):
        assert nothing is None
        return pair[0] * u + pair[1]

    x, _ = kernel(((rule, (), "rule"),))(jnp.array([3.0]), None, ((),), ({"pair": (2.0, 0.5), "nothing": None},))
    assert x[0] == 6.5


def test_weak_types_do_not_leak():
    x, ((m,),) = kernel((LERP,))(3.0, None, ((1.0,),), ({"rate": 0.5},))
    assert not x.weak_type
    assert not m.weak_type
    assert (x, m) == (2.0, 2.0)


def test_widen():
    assert widen(jnp.ones(2, jnp.bfloat16), jnp.float32).dtype == jnp.float32
    assert widen(jnp.ones(2, jnp.complex64), jnp.float32).dtype == jnp.complex64
    assert widen(1.5, jnp.float32).dtype == jnp.float32
    assert widen(jnp.arange(2), jnp.float32).dtype == jnp.int32
    with jax.enable_x64(True):
        assert widen(jnp.ones(2, jnp.complex64), jnp.float64).dtype == jnp.complex128
        assert widen(np.float64(1.5), jnp.float32).dtype == jnp.float32


def test_a_result_of_another_shape_or_with_complex_values_is_refused():
    with pytest.raises(
        ValueError, match=r"scale: the rule made float32\[3\] from float32\[1\]; it must keep the shape"
    ):
        check("scale", jnp.ones(3), jnp.ones(1))
    with pytest.raises(TypeError, match="scale: the rule made complex values for a real leaf; take the real part"):
        check("scale", jnp.ones(1) * 1j, jnp.ones(1))
    check("scale", jnp.ones(1), jnp.ones(1, jnp.complex64))


def test_the_dtype_of_a_python_number_is_the_one_jax_gives_it():
    assert [dtype_of(x) for x in (1, 1.0, 1j, jnp.ones((), jnp.float16))] == [
        np.float32,
        np.float32,
        np.complex64,
        np.float16,
    ]
    assert canonical("float64") == np.float32
    with jax.enable_x64(True):
        assert [dtype_of(x) for x in (1.0, 1j)] == [np.float64, np.complex128]
        assert canonical("float64") == np.float64
