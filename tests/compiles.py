"""Counting what JAX compiles, by its public monitoring events."""

import contextlib

import jax


@contextlib.contextmanager
def counting_compiles():
    """Gives a list that grows by one entry for each function compiled inside the block."""
    compiled = []

    def listen(event, duration, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(details.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
