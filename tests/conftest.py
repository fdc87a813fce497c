"""Set before JAX starts: the tests run on two CPU devices, so that sharded arrays are part of every run."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()

import jax
import pytest


@pytest.fixture
def x64():
    """Double precision for the length of one test."""
    with jax.enable_x64(True):
        yield


class Compilations:
    """Counts what XLA compiled since `start`."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event, duration, **kwargs):
        self.count += event == "/jax/core/compile/backend_compile_duration"

    def start(self):
        self.count = 0


@pytest.fixture(scope="session")
def _compilations():
    return Compilations()  # one for all tests, since JAX has no public way to remove a listener


@pytest.fixture
def compilations(_compilations):
    """``compilations.count`` is how many programs were compiled since the test or ``compilations.start()`` began."""
    _compilations.start()
    return _compilations
