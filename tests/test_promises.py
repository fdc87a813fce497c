"""What every public transform promises, for each entry of the registry.

What the updates should be is told by the tests of the rules; here a transform is compared with itself under another
transformation, dtype, layout or tree, or with a finite difference.
"""

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import optchain as oc
from optchain import schedules
from tests import registry
from tests.registry import ENTRIES

STEPS = 3
SHAPES = {"layer": {"w": (4, 3)}, "s": ()}
HALF = ("bfloat16", "float16")
each = pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)


def where(condition):
    chosen = [e for e in ENTRIES if condition(e)]
    return pytest.mark.parametrize("entry", chosen, ids=lambda e: e.name)


def normal(seed, dtype="float32"):
    """A tree of normal numbers; the same numbers, rounded, for every dtype."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda shape: jnp.asarray(rng.normal(size=shape), dtype), SHAPES, is_leaf=is_shape)


def is_shape(x):
    return isinstance(x, tuple)


def zeros(dtype="float32"):
    return jax.tree.map(lambda shape: jnp.zeros(shape, dtype), SHAPES, is_leaf=is_shape)


def gradients(dtype="float32"):
    return [normal(10 + step, dtype) for step in range(STEPS)]


def stack(trees):
    return jax.tree.map(lambda *xs: jnp.stack(xs), *trees)


@functools.cache
def pair(entry):
    return entry.make()


@functools.cache
def compiled(entry):
    return jax.jit(pair(entry).update)


def run(update, state, grads, params):
    """The updates of each step, and the last state. The parameters stay, which keeps runs comparable."""
    made = []
    for g in grads:
        u, state = update(g, state, params)
        made.append(u)
    return made, state


def run_compiled(entry, grads, params):
    return run(compiled(entry), pair(entry).init(params), grads, params)


def assert_equal(actual, expected):
    """Bit for bit, with structure and dtypes."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert jnp.result_type(a) == jnp.result_type(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def wide(tree):
    """Leaves in NumPy's double precision, whatever the mode of JAX."""
    return [np.asarray(x).astype(np.complex128 if jnp.iscomplexobj(x) else np.float64) for x in jax.tree.leaves(tree)]


def assert_close(actual, expected, ulps=8):
    """To a few units in the last place of the largest entry of the expected tree."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    scale = max((np.max(np.abs(b), initial=0) for b in wide(expected)), default=0)
    for (path, leaf), a, b in zip(jax.tree.leaves_with_path(actual), wide(actual), wide(expected), strict=True):
        assert a.shape == b.shape
        eps = float(jnp.finfo(leaf.dtype).eps) if jnp.issubdtype(leaf.dtype, jnp.inexact) else 0
        np.testing.assert_allclose(a, b, rtol=0, atol=ulps * eps * scale, err_msg=jax.tree_util.keystr(path))


def described(tree):
    """Structure, and shape, dtype and weak type of each leaf."""
    abstract = jax.eval_shape(lambda x: x, tree)
    leaves = [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(abstract)]
    return jax.tree.structure(tree), leaves


def links_of(tx):
    """The pair, its links and theirs."""
    return [tx, *(inner for link in getattr(tx, "links", ()) for inner in links_of(link))]


def assert_names(error, tx, *parts):
    """The message begins with the name of the transform or of one of its links and contains the other parts."""
    message = str(error.value)
    names = [t.name for t in links_of(tx) if isinstance(t, oc.GradientTransformation)]
    assert message.startswith(tuple(f"{name}{after}" for name in names for after in (":", " "))), message
    for part in parts:
        assert part in message, message


# the registry


def test_every_public_transform_is_in_the_registry():
    covered = {entry.builder for entry in ENTRIES}
    missing = [name for name, builder in registry.public_builders().items() if builder not in covered]
    assert not missing, f"add an entry to tests/registry.py for each of {missing}"


def test_names_of_entries_differ():
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_the_search_for_builders_finds_them():
    found = registry.public_builders()
    assert {"optchain.adamw", "optchain.transforms.masked", "optchain.optimizers.sgd", "optchain.chain"} <= set(found)


# transformations of JAX


@each
def test_donated_steps_compile_once_and_equal_eager_ones(entry):
    tx, traces = pair(entry), []

    def step(params, state, grads):
        traces.append(None)
        updates, state = tx.update(grads, state, params)
        return jax.tree.map(jnp.add, params, updates), state, updates

    jitted = jax.jit(step, donate_argnums=(0, 1))
    params, eager_params = normal(0), normal(0)
    state, eager_state = jax.jit(tx.init)(params), tx.init(eager_params)
    assert_equal(state, eager_state)
    state = tx.init(params)
    for grads in gradients():
        params, state, updates = jitted(params, state, grads)
        eager, eager_state = tx.update(grads, eager_state, eager_params)
        eager_params = jax.tree.map(jnp.add, eager_params, eager)
        assert_close(updates, eager, ulps=16)
    assert_close(state, eager_state, ulps=16)
    assert len(traces) == 1


@each
def test_eager_steps_compile_nothing_after_the_first(entry, compilations):
    tx, params, grads = pair(entry), normal(0), gradients()
    state = tx.init(params)
    _, state = tx.update(grads[0], state, params)
    jax.block_until_ready(tx.update(grads[0], state, params))  # counts are fresh arrays now, as in every later step
    compilations.start()
    for g in grads:
        _, state = tx.update(g, state, params)
    assert compilations.count == 0


@where(lambda e: e.numbers)
def test_a_new_number_compiles_nothing(entry, compilations):
    params, grads = normal(0), normal(1)
    for factor in (1.0, 0.9, 0.8):
        tx = entry.make(**{name: factor * value for name, value in entry.numbers.items()})
        state = tx.init(params)
        for _ in range(2):
            _, state = tx.update(grads, state, params)
        if factor == 1.0:
            compilations.start()
    assert compilations.count == 0


@each
def test_scan_under_vmap(entry):
    tx = pair(entry)

    def train(params, grads):
        def body(state, g):
            updates, state = tx.update(g, state, params)
            return state, updates

        return jax.lax.scan(body, tx.init(params), grads)

    batch = [(normal(20), gradients()), (normal(30), gradients()[::-1])]
    states, updates = jax.vmap(train)(stack([p for p, _ in batch]), stack([stack(g) for _, g in batch]))
    expected = [run_compiled(entry, grads, params) for params, grads in batch]
    assert_close(updates, stack([stack(u) for u, _ in expected]), ulps=16)
    assert_close(states, stack([state for _, state in expected]), ulps=16)


@each
def test_derivatives(entry, x64):
    """By the gradients and by every number, against finite differences; finite too where all gradients are zero.

    Everything is computed for many values at once, so that the numbers are batched tracers.
    """
    params, weights, direction, *grads = ({"w": normal(seed, "float64")["layer"]["w"]} for seed in range(5))

    def objective(numbers, grads):
        t, numbers = numbers["t"], {k: v for k, v in numbers.items() if k != "t"}
        tx = entry.make(**numbers)
        moved = [jax.tree.map(lambda g, d: g + t * d, g, direction) for g in grads]
        updates, _ = run(tx.update, tx.init(params), moved, params)
        return sum(jnp.vdot(weights["w"], u["w"]) for u in updates)

    numbers = {"t": 0.0, **entry.numbers}
    steps = {name: 1e-6 * max(abs(value), 1e-3) for name, value in numbers.items()}
    rows = [numbers] + [{**numbers, name: numbers[name] + s} for name, h in steps.items() for s in (h, -h)]
    rows = {name: jnp.array([row[name] for row in rows]) for name in numbers}
    both = jax.jit(jax.vmap(jax.value_and_grad(objective), in_axes=(0, None)))
    values, slopes = both(rows, grads)
    assert all(np.isfinite(slope).all() for slope in slopes.values())
    stored = {x.dtype for x in jax.tree.leaves(jax.eval_shape(entry.make().init, params))}
    if stored <= {jnp.dtype("float64"), jnp.dtype("int32")}:  # rounding of what is stored would drown the differences
        for i, (name, h) in enumerate(steps.items()):
            difference = (values[2 * i + 1] - values[2 * i + 2]) / (2 * h)
            np.testing.assert_allclose(slopes[name][0], difference, rtol=1e-5, atol=1e-5, err_msg=name)
    values, slopes = both(rows, jax.tree.map(jnp.zeros_like, grads))
    assert np.isfinite(values).all()
    assert all(np.isfinite(slope).all() for slope in slopes.values()), slopes


# state


@each
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_state_keeps_its_form(entry, dtype):
    tx, params = pair(entry), normal(0, dtype)
    state = tx.init(params)
    assert not any(weak for *_, weak in described(state)[1])
    for grads_dtype in {dtype, "float32"}:
        _, new = jax.eval_shape(tx.update, normal(1, grads_dtype), state, params)
        assert described(new) == described(state)
    assert described(jax.eval_shape(tx.init, params)) == described(state)


@each
def test_counts_are_int32_scalars(entry):
    for leaf in jax.tree.leaves(pair(entry).init(normal(0))):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            assert (leaf.shape, leaf.dtype) == ((), jnp.int32)


@each
def test_every_buffer_is_fresh(entry):
    params = normal(0)
    state = pair(entry).init(params)
    leaves = [x for x in jax.tree.leaves((params, state)) if x.size]
    assert all(isinstance(x, jax.Array) for x in leaves)
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


@each
def test_a_saved_state_continues_bit_for_bit(entry):
    params, grads = normal(0), gradients()
    expected, expected_state = run_compiled(entry, grads, params)
    _, state = run_compiled(entry, grads[:1], params)
    leaves, treedef = jax.tree.flatten(state)
    saved = [np.array(x) for x in leaves]
    restored = treedef.unflatten([jnp.asarray(x) for x in saved])
    updates, last = run(compiled(entry), restored, grads[1:], params)
    assert_equal((updates, last), (expected[1:], expected_state))
    updates, last = run(compiled(entry), treedef.unflatten(saved), grads[1:], params)  # NumPy's arrays themselves
    assert_equal((updates, last), (expected[1:], expected_state))


@each
def test_sharding_is_kept(entry):
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    rows, all_ = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["x"], []))
    shardings = {"layer": {"w": rows}, "s": all_}
    params, grads = jax.device_put(normal(0), shardings), jax.device_put(normal(1), shardings)
    tx = pair(entry)
    state = tx.init(params)
    updates, new = compiled(entry)(grads, state, params)
    for tree in (state, new, *([updates] if entry.nonfinite != "erased" else [])):  # zeros depend on nothing
        for path, leaf in jax.tree.leaves_with_path(tree):
            if jax.tree_util.keystr(path).endswith("['layer']['w']"):
                assert leaf.sharding.is_equivalent_to(rows, 2), (path, leaf.sharding)
    assert_close(updates, run_compiled(entry, [normal(1)], normal(0))[0][0], ulps=16)


# numbers


@where(lambda e: e.zero)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_zero_gradients_give_zero_updates(entry, dtype):
    for params in (zeros(dtype), normal(0, dtype)):
        updates, state = run_compiled(entry, [zeros(dtype)] * 2, params)
        for leaf in jax.tree.leaves(updates):
            assert leaf.dtype == dtype
            np.testing.assert_array_equal(np.asarray(leaf), 0)
        assert all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in jax.tree.leaves(state))


@where(lambda e: not e.zero)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_zero_gradients_of_zero_parameters_give_zero_updates(entry, dtype):
    updates, _ = run_compiled(entry, [zeros(dtype)] * 2, zeros(dtype))
    assert all(not np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(updates))
    updates, _ = run_compiled(entry, [zeros(dtype)] * 2, normal(0, dtype))
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in jax.tree.leaves(updates))


@each
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_follows_float32(entry, dtype):
    """Half precision is rounding of what is stored: the state's averages once a step, and the update."""
    rounded = jax.tree.map(lambda x: x.astype(jnp.float32), [normal(0, dtype), *gradients(dtype)])
    expected, _ = run_compiled(entry, rounded[1:], rounded[0])
    actual, _ = run_compiled(entry, gradients(dtype), normal(0, dtype))
    for a, b in zip(actual, expected, strict=True):
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(a))
        assert_close(a, b, ulps=3)


@each
def test_updates_have_the_dtype_of_the_gradient(entry):
    for params_dtype, grads_dtype in [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16")]:
        tx, params, grads = pair(entry), normal(0, params_dtype), normal(1, grads_dtype)
        updates, _ = jax.eval_shape(tx.update, grads, tx.init(params), params)
        assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype(grads_dtype)}


@each
def test_each_width_stays_under_x64(entry, x64):
    tx = pair(entry)
    cast = {"layer": {"w": "float64"}, "s": "float32"}
    params, grads = (jax.tree.map(lambda x, d: x.astype(d), normal(seed, "float64"), cast) for seed in (0, 1))
    state = tx.init(params)
    narrow = {leaf.dtype for leaf in jax.tree.leaves(tx.init(normal(0)))}
    assert jnp.dtype("float64") not in narrow
    updates, new = jax.eval_shape(tx.update, grads, state, params)
    assert jax.tree.map(lambda x: x.dtype.name, updates) == cast
    assert described(new) == described(state)


@where(lambda e: e.complex)
def test_complex_leaves_work(entry):
    """A real gradient written as complex gives the real updates; so does an imaginary one, times i."""
    params, grads = normal(0), gradients()
    expected, _ = run_compiled(entry, grads, params)
    ulps = 2.0**18 if "bfloat16" in entry.name else 16  # averages of complex updates are stored as complex64 at least

    def times(unit, tree):
        return jax.tree.map(lambda x: jnp.asarray(unit * x, jnp.complex64), tree)

    for unit in (1, 1j):
        updates, _ = run_compiled(entry, [times(unit, g) for g in grads], times(unit, params))
        for a, b in zip(updates, expected, strict=True):
            assert all(leaf.dtype == jnp.complex64 for leaf in jax.tree.leaves(a))
            assert_close(a, times(unit, b), ulps=ulps)


@where(lambda e: not e.complex)
def test_complex_leaves_are_refused_by_name(entry):
    tx, params = pair(entry), normal(0, "complex64")
    with pytest.raises(TypeError, match="complex") as error:
        jax.eval_shape(lambda: tx.update(params, tx.init(params), params))
    assert_names(error, tx)


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_turns_a_bad_gradient_into_a_number(entry, bad):
    params, grads = normal(0), gradients()
    good, _ = run_compiled(entry, grads[:1], params)
    grads[0]["layer"]["w"] = grads[0]["layer"]["w"].at[1, 2].set(bad)
    updates, _ = run_compiled(entry, grads[:1], params)
    nan = jax.tree.map(np.isnan, updates[0])
    w, rest = nan["layer"]["w"], nan["s"]
    if entry.nonfinite == "erased":
        assert not w.any()
    elif entry.nonfinite == "tree":
        assert w.all()
        assert rest
    elif entry.nonfinite == "leaf":
        assert w.all()
    elif entry.nonfinite == "unit":
        np.testing.assert_array_equal(w, np.arange(3) == np.array([[2]] * 4))
    elif np.isnan(bad):
        assert w[1, 2]
        assert w.sum() == 1
    else:  # an infinite entry may keep its size, be bounded by clip, or become NaN
        assert entry.builder in (oc.clip, oc.named_chain) or not np.isfinite(updates[0]["layer"]["w"][1, 2])
    if entry.nonfinite != "tree":
        assert_equal(updates[0]["s"], good[0]["s"])


# trees


@each
def test_none_and_empty_leaves_pass(entry):
    extra = {"none": None, "empty": jnp.zeros(0), "rows": jnp.zeros((0, 3)), "deep": {"none": None, "nothing": ()}}
    params, grads = normal(0), gradients()[:2]
    expected, _ = run_compiled(entry, grads, params)
    updates, state = run_compiled(entry, [{**g, **extra} for g in grads], {**params, **extra})
    for a, b in zip(updates, expected, strict=True):
        assert a["none"] is None
        assert a["deep"] == {"none": None, "nothing": ()}
        assert (a["empty"].shape, a["rows"].shape) == ((0,), (0, 3))
        assert_close({k: a[k] for k in b}, b)
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state))


@each
@pytest.mark.parametrize("tree", [{}, (), [], None, {"a": None, "b": ()}], ids=repr)
def test_empty_trees_pass(entry, tree):
    if tree is None and entry.params:
        return  # None says that there are no parameters
    tx = pair(entry)
    updates, state = tx.update(tree, tx.init(tree), tree)
    assert updates == tree
    assert described(state) == described(tx.init(tree))


@where(lambda e: e.local)
def test_leaves_do_not_touch_each_other(entry):
    params, grads = normal(0), gradients()[:2]
    expected, _ = run_compiled(entry, grads, params)
    for g in grads:
        g["s"] = 100 * g["s"]
    updates, _ = run_compiled(entry, grads, params)
    assert_equal([u["layer"]["w"] for u in updates], [u["layer"]["w"] for u in expected])


@where(lambda e: not e.params)
def test_parameters_may_be_left_out(entry):
    tx, params, grads = pair(entry), normal(0), normal(1)
    state = tx.init(params)
    assert_equal(tx.update(grads, state), tx.update(grads, state, params))


@each
def test_extra_arguments_are_tolerated(entry):
    tx, params, grads = pair(entry), normal(0), normal(1)
    state = tx.init(params)
    plain = tx.update(grads, state, params)
    extra = tx.update(grads, state, params, value=jnp.float32(3.0), grad=grads, value_fn=len, unheard_of=object())
    assert_equal(extra, plain)


# values


@where(lambda e: e.plain)
def test_equal_calls_are_equal(entry):
    a, b = entry.make(), entry.make()
    assert a == b
    assert hash(a) == hash(b)
    for name, value in entry.numbers.items():
        assert entry.make(**{name: value * 1.5 if value < 0.5 else value * 0.5}) != a


@where(lambda e: e.plain)
def test_copies_are_equal(entry):
    tx = pair(entry)
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert copy.copy(tx) == tx
    assert copy.deepcopy(tx) == tx


@where(lambda e: e.plain)
def test_repr_evaluates_back(entry):
    tx = pair(entry)
    assert eval(repr(tx), {**vars(registry), **vars(schedules), **vars(oc)}) == tx


@where(lambda e: e.plain)
def test_equal_transforms_trace_once_as_a_static_argument(entry):
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def step(tx, grads, params):
        traces.append(None)
        return tx.update(grads, tx.init(params), params)

    for _ in range(3):
        step.trace(entry.make(), normal(1), normal(0))
    assert len(traces) == 1


@each
def test_the_sign_is_true(entry):
    tx = pair(entry)
    grads = normal(1)
    updates, _ = run_compiled(entry, [grads], zeros())
    products = [float(jnp.vdot(g, u)) for g, u in zip(*map(jax.tree.leaves, (grads, updates[0])), strict=True)]
    if tx.sign is not None:
        assert all(np.sign(p) == tx.sign for p in products), (tx.sign, products)


def is_sequence(entry):
    state = jax.eval_shape(pair(entry).init, normal(0))
    return type(state) is tuple or isinstance(state, dict)


@where(is_sequence)
def test_a_chain_equals_its_links_one_by_one(entry):
    tx, params = pair(entry), normal(0)
    state = tx.init(params)
    by_hand = [link.init(params) for link in tx.links]
    for grads in gradients():
        updates, state = tx.update(grads, state, params)
        for i, link in enumerate(tx.links):
            grads, by_hand[i] = link.update(grads, by_hand[i], params)
        assert_close(updates, grads)
    assert_close(list(state.values()) if isinstance(state, dict) else list(state), by_hand)


# wrong input


def keeps_arrays(entry):
    return any(x.ndim for x in jax.tree.leaves(jax.eval_shape(pair(entry).init, normal(0))))


@where(keeps_arrays)
def test_gradients_of_another_tree_are_refused(entry):
    tx, params, grads = pair(entry), normal(0), normal(1)
    state = tx.init(params)
    w = grads["layer"].pop("w")
    for wrong in (grads, {**grads, "layer": {**grads["layer"], "v": w}}, {**grads, "layer": None}, w):
        with pytest.raises(ValueError) as error:
            jax.eval_shape(tx.update, wrong, state, wrong)
        assert_names(error, tx)
    with pytest.raises(ValueError) as error:
        jax.eval_shape(tx.update, grads, state, grads)
    assert_names(error, tx, "['layer']['w']")


@where(keeps_arrays)
@pytest.mark.parametrize("shape", [(3, 4), (4,), (), (1, 3), (4, 3, 1)])
def test_gradients_of_another_shape_are_refused(entry, shape):
    tx, params, grads = pair(entry), normal(0), normal(1)
    grads["layer"]["w"] = jnp.zeros(shape)
    with pytest.raises(ValueError) as error:
        jax.eval_shape(tx.update, grads, tx.init(params), grads)
    assert_names(error, tx, *(["['layer']['w']", "[4,3]", f"[{','.join(map(str, shape))}]"] if len(shape) == 2 else []))


@where(lambda e: e.params)
def test_missing_parameters_are_refused(entry):
    tx, params = pair(entry), normal(0)
    with pytest.raises(ValueError, match=r"update\(grads, state, params\)") as error:
        tx.update(normal(1), tx.init(params))
    assert_names(error, tx)


@where(lambda e: e.params)
def test_parameters_of_another_shape_are_refused(entry):
    tx, params, grads = pair(entry), normal(0), normal(1)
    state = tx.init(params)
    params["layer"]["w"] = jnp.ones((1, 3))
    with pytest.raises(ValueError, match="params") as error:
        jax.eval_shape(tx.update, grads, state, params)
    assert_names(error, tx, "['layer']['w']", "float32[4,3]", "float32[1,3]")
    del params["layer"]["w"]
    with pytest.raises(ValueError, match="params") as error:
        jax.eval_shape(tx.update, grads, state, params)
    assert_names(error, tx, "['layer']['w']")


@where(lambda e: e.checks)
@pytest.mark.parametrize(
    "leaf",
    [np.ones((4, 3), np.int32), np.ones((4, 3), bool), np.zeros((4, 3), jax.dtypes.float0), np.sin, "w", object()],
    ids=["int32", "bool", "float0", "function", "str", "object"],
)
def test_leaves_that_are_no_floating_arrays_are_refused(entry, leaf):
    tx, params = pair(entry), normal(0)
    state = tx.init(params)
    wrong = normal(0)
    wrong["layer"]["w"] = leaf
    found = str(getattr(leaf, "dtype", type(leaf).__name__))
    with pytest.raises(TypeError) as error:
        tx.update(wrong, state, params)
    assert_names(error, tx, "['layer']['w']", found)
    with pytest.raises(TypeError) as error:
        tx.init(wrong)
    assert_names(error, tx, "['layer']['w']", found)


@where(keeps_arrays)
def test_a_state_of_another_transform_is_refused(entry):
    tx, params = pair(entry), normal(0)
    with pytest.raises(ValueError) as error:
        tx.update(normal(1), oc.ScaleByScheduleState(jnp.zeros([], jnp.int32)), params)
    assert_names(error, tx, "ScaleByScheduleState")
