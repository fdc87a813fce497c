"""Set before JAX starts: the tests run on two CPU devices, so that sharded arrays are part of every run."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()

import jax
import pytest

from tests.compiles import counting_compiles


@pytest.fixture
def x64():
    """Double precision for the length of one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def compilations():
    """A list that grows by one entry for each program compiled; ``clear()`` starts anew."""
    with counting_compiles() as compiled:
        yield compiled
