"""`packed` and `flatten` against the transforms inside them, whose numbers other files compare with NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import optchain as oc
from optchain.core.leaves import LeafLink
from optchain.core.masks import MaskedNode
from optchain.core.plan import node_of
from optchain.transforms.packing import Packed
from tests.registry import ENTRIES, matrices, partial_sums

SHAPES = {
    "w": ((3, 4), "float32"),
    "b": ((4,), "float32"),
    "s": ((), "float32"),
    "half": ((5,), "bfloat16"),
    "halves": ((2, 2), "bfloat16"),
    "alone": ((3,), "float16"),
    "empty": ((0, 3), "float32"),
    "large": ((9, 9), "float32"),
    "nested": [((4,), "float32"), ((2, 3), "float32")],
}
# The links whose last rounding XLA may place elsewhere, in float32 steps.
ULPS = 4


def is_spec(x):
    return isinstance(x, tuple)


def normal(seed):
    rng = np.random.default_rng(seed)
    tree = jax.tree.map(lambda spec: jnp.asarray(rng.normal(size=spec[0]), spec[1]), SHAPES, is_leaf=is_spec)
    return tree | {"none": None}


def vectors(state):
    return [x for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Packed)) if isinstance(x, Packed)]


def assert_close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        eps = float(jnp.finfo(x.dtype).eps) if jnp.issubdtype(x.dtype, jnp.inexact) else 0.0
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        np.testing.assert_allclose(x, y, rtol=ULPS * eps, atol=ULPS * eps * np.abs(y).max(initial=0.0))


def elementwise(entry):
    atoms = node_of(entry.make()).atoms
    return not entry.joins and all(isinstance(atom, LeafLink) and atom.elementwise for atom in atoms)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if elementwise(e)], ids=lambda e: e.name)
def test_the_numbers_and_states_are_those_of_the_transform_inside(entry):
    inner, params = entry.make(), normal(0)
    tx = oc.packed(inner, 20)
    assert tx.sign == inner.sign
    state, state_inside = tx.init(params), inner.init(params)
    update = jax.jit(tx.update)
    for step in range(3):
        grads = normal(step + 1)
        updates, state = update(grads, state, params)
        expected, state_inside = inner.update(grads, state_inside, params)
        assert_close(updates, expected)
    assert_close(oc.unpack_state(state), state_inside)
    repacked = oc.pack_state(tx, state_inside, jax.eval_shape(lambda: params))
    assert jax.tree.structure(repacked) == jax.tree.structure(state)
    assert_close(tx.update(grads, repacked, params)[0], inner.update(grads, state_inside, params)[0])


def test_every_link_that_is_elementwise_is_tried():
    names = {e.name for e in ENTRIES if elementwise(e)}
    assert {"clip_by_global_norm", "trace_bfloat16", "adamw_mask", "partition", "clip_then_adamw"} <= names


@pytest.mark.parametrize("entry", [e for e in ENTRIES if not elementwise(e) and not e.joins], ids=lambda e: e.name)
def test_what_may_look_at_whole_tensors_is_refused_by_name(entry):
    for build in (oc.packed, oc.flatten):
        with pytest.raises(TypeError, match=rf"^{build.__name__}: .* may look at whole tensors.*elementwise=True"):
            build(entry.make())


@pytest.mark.parametrize("build", [oc.clip_by_block_rms, oc.adaptive_grad_clip])
def test_the_link_that_is_refused_is_named(build):
    with pytest.raises(TypeError, match=f"^packed: {build.__name__} may look"):
        oc.packed(oc.chain(oc.trace(0.9), build(0.5), oc.sgd(0.1)))
    oc.chain(build(0.5), oc.packed(oc.sgd(0.1, 0.9)))


def test_a_rule_of_ones_own_is_packed_once_it_says_so():
    with pytest.raises(TypeError, match="packed: partial_sums may look"):
        oc.packed(partial_sums(0.5))

    def half_rule(u, p):
        return 0.5 * u

    @oc.transform
    def half():
        return oc.leafwise(half_rule, elementwise=True)

    updates, _ = oc.packed(half()).update([jnp.ones(2), jnp.ones(())], oc.EmptyState())
    assert [u.tolist() for u in updates] == [[0.5, 0.5], 0.5]


def test_small_leaves_of_one_dtype_share_a_vector():
    state = oc.packed(oc.trace(0.9), 20).init(normal(0))
    (packed,) = vectors(state)
    # 12 + 4 + 1 + 4 + 6 entries in float32 and 5 + 4 in bfloat16; one leaf alone, an empty and a large one stay.
    assert {(v.shape, str(v.dtype)) for v in packed.vectors} == {((27,), "float32"), ((9,), "bfloat16")}
    assert sorted(x.shape for x in packed.rest) == [(0, 3), (3,), (9, 9)]
    (packed,) = vectors(oc.flatten(oc.trace(0.9)).init(normal(0)))
    assert {v.shape for v in packed.vectors} == {(27 + 81,), (9,)}


def test_leaves_that_a_mask_parts_lie_apart():
    params = {"w": jnp.ones((2, 3)), "v": jnp.ones((3, 2)), "b": jnp.ones(3), "c": jnp.ones(2)}
    tx = oc.packed(oc.adamw(0.1, weight_decay=0.5, mask={"w": True, "v": True, "b": False, "c": False}))
    state = tx.init(params)
    assert [v.shape for v in vectors(state)[0].vectors] == [(5,), (12,)]
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), state, params)
    # The gradient is zero: what moves is decayed by the rate times the decay.
    for name, expected in {"w": -0.05, "v": -0.05, "b": 0.0, "c": 0.0}.items():
        np.testing.assert_allclose(updates[name], np.full(params[name].shape, expected), rtol=1e-6)


def test_a_mask_that_is_a_function_sees_the_tree_that_the_user_knows():
    seen = []

    def mask(tree):
        seen.append(jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree))
        return jax.tree.map(lambda x: x.ndim > 1, tree)

    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3), "c": jnp.ones(2)}
    tx = oc.packed(oc.masked(oc.trace(0.9), mask))
    state = tx.init(params)
    tx.update(params, state, params)
    known = {"w": ((2, 3), "float32"), "b": ((3,), "float32"), "c": ((2,), "float32")}
    assert seen
    assert all(tree == known for tree in seen)
    assert isinstance(oc.unpack_state(state).inner_state.trace["b"], MaskedNode)


def test_packed_inside_a_mask():
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3), "c": jnp.ones(2)}
    inner = oc.sgd(0.5, momentum=0.9)
    tx, plain = oc.masked(oc.packed(inner), matrices), oc.masked(inner, matrices)
    assert_close(tx.update(params, tx.init(params))[0], plain.update(params, plain.init(params))[0])


@pytest.mark.parametrize("grad_dtype", ["bfloat16", "float32", "mixed"])
def test_gradients_of_another_dtype_than_the_parameters(grad_dtype):
    params = [jnp.ones(3), jnp.ones((2, 2)), jnp.ones(())]
    rng = np.random.default_rng(0)
    dtypes = ["bfloat16", "float32", "float16"] if grad_dtype == "mixed" else [grad_dtype] * 3
    inner = oc.adam(0.1)
    tx = oc.packed(inner)
    state, state_inside = tx.init(params), inner.init(params)
    for _ in range(3):
        grads = [jnp.asarray(rng.normal(size=p.shape), d) for p, d in zip(params, dtypes, strict=True)]
        updates, state = tx.update(grads, state)  # the parameters are not given: the state knows their layout
        expected, state_inside = inner.update(grads, state_inside)
        assert_close(updates, expected)
    assert_close(oc.unpack_state(state), state_inside)


def test_many_leaves_are_cut_where_they_lie():
    rng = np.random.default_rng(0)
    shapes = [(), (3,), (2, 2), (5,)]
    grads = [jnp.asarray(rng.normal(size=shapes[i % 4]), jnp.float32) for i in range(200)]
    tx = oc.packed(oc.sgd(0.5))
    updates, _ = jax.jit(tx.update)(grads, tx.init(grads))
    for u, g in zip(updates, grads, strict=True):
        np.testing.assert_array_equal(u, -0.5 * np.asarray(g))


def test_the_kernels_of_the_moments_do_not_grow_with_the_leaves():
    def kernels(count):
        params = [jnp.ones(8)] * count
        tx = oc.packed(oc.adam(0.1))
        jaxpr = jax.make_jaxpr(tx.update)(params, tx.init(params))
        return sum("sqrt" in str(eqn) for eqn in jaxpr.eqns)

    assert kernels(10) == kernels(100) == 1


def test_one_step_compiles_once_and_trains():
    def loss_fn(params, x, y):
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    x = jax.random.normal(jax.random.key(0), (64, 3))
    y = x @ jnp.array([1.0, -2.0, 0.5]) + 0.3
    train = oc.compile_train(loss_fn, oc.packed(oc.chain(oc.clip_by_global_norm(1.0), oc.adam(0.1))))
    state = train.init({"w": jnp.zeros(3), "b": jnp.zeros(())})
    for _ in range(200):
        state, metrics = train(state, x, y)
    assert train.compilations == 1
    assert metrics["loss"] < 1e-4
    np.testing.assert_allclose(state.params["w"], [1.0, -2.0, 0.5], atol=0.02)


def test_vmap_and_derivatives():
    tx = oc.packed(oc.sgd(0.5, momentum=0.5))
    grads = [jnp.arange(6.0).reshape(2, 3), jnp.arange(2.0)]

    def step(g):
        state = tx.init(g)
        _, state = tx.update(g, state)
        return tx.update(g, state)[0]

    for u, g in zip(jax.vmap(step)(grads), grads, strict=True):
        np.testing.assert_allclose(u, -0.5 * 1.5 * np.asarray(g), rtol=1e-6)
    derived = jax.grad(lambda g: sum(jnp.sum(u**2) for u in step(g)))(grads)
    for d, g in zip(derived, grads, strict=True):
        np.testing.assert_allclose(d, 2 * 0.75**2 * np.asarray(g), rtol=1e-6)


def test_sharded_parameters_give_the_same_numbers():
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    params = [jnp.arange(8.0).reshape(4, 2), jnp.ones(4)]
    tx = oc.packed(oc.adam(0.1))
    expected = tx.update(params, tx.init(params))[0]
    split = jax.device_put(params, rows)
    assert_close(jax.jit(tx.update)(split, tx.init(split))[0], expected)


def test_wrong_sizes_are_refused():
    for bad in (0, -1, "4", 2.5, np.array([4, 5])):
        with pytest.raises(ValueError, match="packed: max_size must be an integer of at least 1, or None"):
            oc.packed(oc.sgd(0.1), bad)
    with pytest.raises(TypeError, match="packed: argument inner is"):
        oc.packed(0.1)


def test_gradients_that_do_not_fit_the_state_are_refused_by_path():
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    tx = oc.packed(oc.trace(0.9))
    state = tx.init(params)
    with pytest.raises(ValueError, match=r"packed: .*\['w'\].*the parameters of init"):
        tx.update({"w": jnp.ones((3, 2)), "b": jnp.ones(3)}, state)
    with pytest.raises(ValueError, match=r"packed: .*\['c'\]"):
        tx.update({"w": jnp.ones((2, 3)), "c": jnp.ones(3)}, state)
    with pytest.raises(TypeError, match=r"packed: the gradient leaf at \['b'\] is int32"):
        tx.update({"w": jnp.ones((2, 3)), "b": jnp.ones(3, jnp.int32)}, state)
    with pytest.raises(TypeError, match=r"packed: the parameter leaf at \['b'\] is int32"):
        tx.init({"w": jnp.ones((2, 3)), "b": jnp.ones(3, jnp.int32)})


def test_a_state_of_another_transform_is_not_packed():
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    tx, plain = oc.packed(oc.trace(0.9)), oc.trace(0.9)
    with pytest.raises(ValueError, match=r"pack_state: the state does not have the structure .*trace"):
        oc.pack_state(tx, oc.adam(0.1).init(params), params)
    with pytest.raises(ValueError, match="pack_state: the state does not have the structure"):
        oc.pack_state(tx, plain.init([jnp.ones(3)]), params)
    with pytest.raises(
        ValueError, match=r"pack_state: the state at .*\['b'\] is float32\[2\], but .*float32\[3\] there"
    ):
        oc.pack_state(tx, plain.init({"w": jnp.ones((2, 3)), "b": jnp.ones(2)}), params)
    with pytest.raises(ValueError, match=r"\['w'\] is bfloat16\[2,3\]"):
        oc.pack_state(tx, plain.init({"w": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.ones(3)}), params)
    for bad in (plain, oc.packed, None):
        with pytest.raises(TypeError, match=r"pack_state: tx is .* pass what packed or flatten returned"):
            oc.pack_state(bad, plain.init(params), params)


def test_a_state_made_with_another_mask_is_refused_until_it_is_converted():
    params = {"a": jnp.ones(3), "b": jnp.ones((2, 2)), "c": jnp.ones(2)}
    grads = jax.tree.map(jnp.zeros_like, params)
    state = oc.packed(oc.adamw(0.1, weight_decay=1.0, mask={"a": True, "b": True, "c": True})).init(params)
    tx = oc.packed(oc.adamw(0.1, weight_decay=1.0, mask={"a": False, "b": True, "c": True}))
    with pytest.raises(ValueError, match=r"packed: the mask at \['b'\] is True, .*pack_state"):
        tx.update(grads, state, params)
    updates, _ = tx.update(grads, oc.pack_state(tx, oc.unpack_state(state), params), params)
    assert [updates[k].ravel()[0].item() for k in "abc"] == pytest.approx([0.0, -0.1, -0.1])
