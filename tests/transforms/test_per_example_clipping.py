"""Clips example by example, against closed forms and NumPy's double precision."""

import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc


def some(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in shapes]


def test_examples_by_global_norm_in_closed_form():
    grads = {"w": jnp.array([[3.0, 0.0], [0.3, 0.0], [0.0, 0.0]]), "b": jnp.array([4.0, 0.4, 0.0])}
    total, count = oc.per_example_global_norm_clip(grads, 1.0)  # the norms are 5, 0.5 and 0
    np.testing.assert_allclose(total["w"], [0.9, 0.0], rtol=1e-6)
    np.testing.assert_allclose(total["b"], 1.2, rtol=1e-6)
    assert int(count) == 1


def test_examples_by_global_norm_formula(x64):
    a, b = some((6, 3, 2), (6, 4))
    norms = np.sqrt(np.sum(a**2, axis=(1, 2)) + np.sum(b**2, axis=1))
    limit = float(np.median(norms))
    factors = np.minimum(1, limit / norms)
    total, count = oc.per_example_global_norm_clip([jnp.asarray(a), jnp.asarray(b)], limit)
    np.testing.assert_allclose(total[0], np.einsum("nij,n->ij", a, factors), rtol=1e-12)
    np.testing.assert_allclose(total[1], np.einsum("ni,n->i", b, factors), rtol=1e-12)
    assert int(count) == np.sum(norms > limit) == 3


def test_an_example_at_the_limit_is_not_clipped():
    total, count = oc.per_example_global_norm_clip(jnp.array([[3.0, 4.0]]), 5.0)
    np.testing.assert_array_equal(total, [3, 4])
    assert int(count) == 0


@pytest.mark.parametrize("uniform", [True, False])
def test_examples_by_layer_formula(x64, uniform):
    a, b = some((6, 3, 2), (6, 4))
    shares = (0.5, 0.5) if uniform else (0.6, 0.4)  # of the 6 + 4 entries of one example
    total, counts = oc.per_example_layer_norm_clip({"a": jnp.asarray(a), "b": jnp.asarray(b)}, 2.5, uniform=uniform)
    for g, share, key in zip((a, b), shares, "ab", strict=True):
        flat, limit = g.reshape(6, -1), 2.5 * np.sqrt(share)
        norms = np.linalg.norm(flat, axis=1)
        np.testing.assert_allclose(total[key].ravel(), np.minimum(1, limit / norms) @ flat, rtol=1e-12)
        assert int(counts[key]) == np.sum(norms > limit)


@pytest.mark.parametrize("clip", [oc.per_example_global_norm_clip, oc.per_example_layer_norm_clip])
def test_examples_at_any_scale(clip):
    total, _ = clip(jnp.array([[3e30, 4e30], [3e-30, 4e-30]]), 1.0)
    np.testing.assert_allclose(total, [0.6, 0.8], rtol=1e-6)
    total, _ = clip(jnp.array([[300.0, 400.0]] * 10, jnp.float16), 1.0)
    assert total.dtype == jnp.float16
    np.testing.assert_allclose(total, [6.0, 8.0], rtol=1e-3)


@pytest.mark.parametrize("clip", [oc.per_example_global_norm_clip, oc.per_example_layer_norm_clip])
def test_an_example_that_is_not_finite_is_seen(clip):
    total, _ = clip(jnp.array([[np.inf, 1.0], [1.0, 1.0]]), 1.0)
    assert np.isnan(total).all()


@pytest.mark.parametrize("clip", [oc.per_example_global_norm_clip, oc.per_example_layer_norm_clip])
@pytest.mark.parametrize("grads", [{"a": (3, 2), "b": (2, 2)}, {"a": (3, 2), "b": ()}, {"a": ()}], ids=str)
def test_unequal_batches_are_refused(clip, grads):
    with pytest.raises(ValueError, match=f"{clip.__name__}: .* axis 0"):
        clip({k: jnp.ones(shape) for k, shape in grads.items()}, 1.0)


@pytest.mark.parametrize("clip", [oc.per_example_global_norm_clip, oc.per_example_layer_norm_clip])
@pytest.mark.parametrize("limit", [-1.0, np.float32(-1), None, jnp.ones(2)])
def test_limits_are_numbers_of_at_least_zero(clip, limit):
    with pytest.raises(ValueError, match=f"{clip.__name__}: .* at least 0"):
        clip([jnp.array([[3.0, 4.0]])], limit)


@pytest.mark.parametrize("clip", [oc.per_example_global_norm_clip, oc.per_example_layer_norm_clip])
def test_no_leaf_is_no_batch(clip):
    with pytest.raises(ValueError, match=f"{clip.__name__}: every leaf needs the examples on axis 0"):
        clip([], 1.0)


def test_an_example_that_is_not_finite_counts_and_shows():
    total, count = oc.per_example_global_norm_clip(jnp.array([[np.nan], [0.5]]), 1.0)
    assert np.isnan(total).all()
    assert int(count) == 1
