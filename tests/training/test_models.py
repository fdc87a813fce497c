"""The compiled step on models of other libraries."""

import equinox
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain
from optchain.training import compile_train

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1 * RNG.normal(size=16)
BATCH = (jnp.asarray(X, jnp.float32), jnp.asarray(Y, jnp.float32))


def test_equinox_model():
    model = equinox.nn.Linear(3, "scalar", key=jax.random.key(0))
    params, static = equinox.partition(model, equinox.is_inexact_array)

    def loss_fn(params, x, y):
        return jnp.mean((jax.vmap(equinox.combine(params, static))(x) - y) ** 2)

    step = compile_train(loss_fn, optchain.sgd(0.1))
    state, _ = step(step.init(params), *BATCH)
    w, b = np.asarray(model.weight, np.float64)[0], np.asarray(model.bias, np.float64)[0]
    residual = X @ w + b - Y
    np.testing.assert_allclose(state.params.weight[0], w - 0.1 * 2 * X.T @ residual / 16, rtol=1e-5)
    np.testing.assert_allclose(state.params.bias, [b - 0.1 * 2 * residual.mean()], rtol=1e-5)
    assert equinox.combine(state.params, static)(BATCH[0][0]).shape == ()
    with pytest.raises(TypeError, match=r"compile_train: the parameter .* is a value of type .*equinox\.filter"):
        step.init(equinox.nn.MLP(3, 1, 4, 1, key=jax.random.key(0)))


def test_flax_nnx_model():
    model = flax.nnx.Linear(3, 1, rngs=flax.nnx.Rngs(0))
    graph, params = flax.nnx.split(model, flax.nnx.Param)
    w = np.asarray(model.kernel[...], np.float64)[:, 0]

    def loss_fn(params, x, y):
        return jnp.mean((flax.nnx.merge(graph, params)(x)[:, 0] - y) ** 2)

    step = compile_train(loss_fn, optchain.sgd(0.1), metrics=("grad_norm",))
    state, _ = step(step.init(params), *BATCH)
    state, _ = step(state, *BATCH)
    b = 0.0
    for _ in range(2):
        residual = X @ w + b - Y
        w, b = w - 0.2 * X.T @ residual / 16, b - 0.2 * residual.mean()
    trained = flax.nnx.merge(graph, state.params)
    np.testing.assert_allclose(trained.kernel[...][:, 0], w, rtol=1e-5)
    np.testing.assert_allclose(trained.bias[...], [b], rtol=1e-5)
    assert step.compilations == 1
