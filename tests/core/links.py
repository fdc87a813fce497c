"""A pool of links, each with the same in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np

import optchain
from optchain import chain, named_chain


def by_rank(tree):
    """True for leaves with axes, false for scalars."""
    return jax.tree.map(lambda x: jnp.ndim(x) > 0, tree)


def labels_by_rank(tree):
    return jax.tree.map(lambda x: "wide" if jnp.ndim(x) > 0 else "narrow", tree)


def opaque_init(params):
    return jnp.zeros([], jnp.int32)


def opaque_update(updates, state, params=None):
    return jax.tree.map(lambda u: u + 0.25 * (state + 1), updates), state + 1


# Each link with the same in NumPy: a function that makes, for the leaves of the parameters, a function from lists of
# gradients and parameters to the list of updates.


def np_scale(factor):
    return lambda params: lambda us, ps: [factor * u for u in us]


def np_clip(limit):
    return lambda params: lambda us, ps: [np.clip(u, -limit, limit) for u in us]


def np_clip_norm(limit):
    def step(us, ps):
        norm = np.sqrt(sum(np.sum(u**2) for u in us)) if us else 0.0
        return [u * min(1.0, limit / norm) if norm > 0 else u for u in us]

    return lambda params: step


def np_decay(rate):
    return lambda params: lambda us, ps: [u + rate * p for u, p in zip(us, ps, strict=True)]


def np_trace(decay, nesterov=False):
    def make(params):
        sums = [np.zeros(np.shape(p)) for p in params]

        def step(us, ps):
            sums[:] = [u + decay * m for u, m in zip(us, sums, strict=True)]
            return [u + decay * m if nesterov else m for u, m in zip(us, sums, strict=True)]

        return step

    return make


def np_ema(decay):
    def make(params):
        means, t = [np.zeros(np.shape(p)) for p in params], [0]

        def step(us, ps):
            t[0] += 1
            means[:] = [decay * m + (1 - decay) * u for u, m in zip(us, means, strict=True)]
            return [m / (1 - decay ** t[0]) for m in means]

        return step

    return make


def np_adam(b1, b2, eps):
    def make(params):
        mu, nu, t = [np.zeros(np.shape(p)) for p in params], [np.zeros(np.shape(p)) for p in params], [0]

        def step(us, ps):
            t[0] += 1
            mu[:] = [b1 * m + (1 - b1) * u for u, m in zip(us, mu, strict=True)]
            nu[:] = [b2 * v + (1 - b2) * u**2 for u, v in zip(us, nu, strict=True)]
            return [m / (1 - b1 ** t[0]) / (np.sqrt(v / (1 - b2 ** t[0])) + eps) for m, v in zip(mu, nu, strict=True)]

        return step

    return make


def np_schedule(schedule):
    def make(params):
        t = [0]

        def step(us, ps):
            t[0] += 1
            return [schedule(t[0] - 1) * u for u in us]

        return step

    return make


def np_opaque():
    def make(params):
        t = [0]

        def step(us, ps):
            t[0] += 1
            return [u + 0.25 * t[0] for u in us]

        return step

    return make


def np_chain(*links):
    def make(params):
        steps = [link(params) for link in links]

        def step(us, ps):
            for one in steps:
                us = one(us, ps)
            return us

        return step

    return make


def np_parts(wide, narrow=None):
    """`wide` on leaves with axes, and `narrow`, or nothing, on scalars."""

    def make(params):
        flags = [np.ndim(p) > 0 for p in params]
        inner = {
            flag: link([p for p, f in zip(params, flags, strict=True) if f is flag])
            for flag, link in ((True, wide), (False, narrow))
            if link is not None
        }

        def step(us, ps):
            new = list(us)
            for flag, one in inner.items():
                at = [i for i, f in enumerate(flags) if f is flag]
                for i, u in zip(at, one([us[i] for i in at], [ps[i] for i in at]), strict=True):
                    new[i] = u
            return new

        return step

    return make


def decreasing(count):
    return 1.0 / (1.0 + count)


POOL = {
    "scale": (optchain.scale(-0.75), np_scale(-0.75)),
    "clip": (optchain.clip(0.6), np_clip(0.6)),
    "norm": (optchain.clip_by_global_norm(0.5), np_clip_norm(0.5)),
    "trace": (optchain.trace(0.8), np_trace(0.8)),
    "nesterov": (optchain.trace(0.6, nesterov=True), np_trace(0.6, nesterov=True)),
    "ema": (optchain.ema(0.7), np_ema(0.7)),
    "decay": (optchain.add_decayed_weights(0.3), np_decay(0.3)),
    "adam": (optchain.scale_by_adam(0.8, 0.9, 0.1), np_adam(0.8, 0.9, 0.1)),
    "schedule": (optchain.scale_by_schedule(decreasing), np_schedule(decreasing)),
    "sgd": (optchain.sgd(0.5, momentum=0.9), np_chain(np_trace(0.9), np_scale(-0.5))),
    "adamw": (
        optchain.adamw(0.5, 0.8, 0.9, 0.1, weight_decay=0.2),
        np_chain(np_adam(0.8, 0.9, 0.1), np_decay(0.2), np_scale(-0.5)),
    ),
    "opaque": (optchain.GradientTransformation(opaque_init, opaque_update), np_opaque()),
    "masked decay": (optchain.add_decayed_weights(0.3, by_rank), np_parts(np_decay(0.3))),
    "masked trace": (optchain.masked(optchain.trace(0.8), by_rank), np_parts(np_trace(0.8))),
    "masked norm": (optchain.masked(optchain.clip_by_global_norm(0.5), by_rank), np_parts(np_clip_norm(0.5))),
    "masked chain": (
        optchain.masked(
            chain(optchain.ema(0.7), optchain.clip_by_global_norm(0.5), optchain.add_decayed_weights(0.3)), by_rank
        ),
        np_parts(np_chain(np_ema(0.7), np_clip_norm(0.5), np_decay(0.3))),
    ),
    "masked opaque": (
        optchain.masked(optchain.GradientTransformation(opaque_init, opaque_update), by_rank),
        np_parts(np_opaque()),
    ),
    "partition": (
        optchain.partition(
            {
                "wide": chain(optchain.scale_by_adam(0.8, 0.9, 0.1), optchain.scale(0.5)),
                "narrow": chain(optchain.clip_by_global_norm(0.4), optchain.trace(0.5)),
            },
            labels_by_rank,
        ),
        np_parts(np_chain(np_adam(0.8, 0.9, 0.1), np_scale(0.5)), np_chain(np_clip_norm(0.4), np_trace(0.5))),
    ),
    "named": (
        named_chain(("b", optchain.trace(0.8)), ("a", optchain.scale(2.0))),
        np_chain(np_trace(0.8), np_scale(2.0)),
    ),
    "identity": (optchain.identity(), np_chain()),
}
