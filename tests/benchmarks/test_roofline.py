"""The bytes that programs move, against counts made by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from benchmarks import contenders, roofline, trees

N = 1 << 16
BYTES = 4 * N
SCALARS = 256  # room for scalars


def moved(function, *arguments, donate=()):
    return roofline.program_bytes(jax.jit(function, donate_argnums=donate).lower(*arguments).compile().as_text())


def ones(size=N):
    return jnp.ones(size, jnp.float32)


def test_an_elementwise_program_reads_its_operands_and_writes_its_result():
    assert moved(lambda x, y: 2 * x + y, ones(), ones()) == 3 * BYTES


def test_a_reduction_reads_once():
    assert moved(lambda x: jnp.sum(x * x), ones()) == pytest.approx(BYTES, abs=SCALARS)


def test_half_precision_counts_half():
    assert moved(lambda x: x + 1, ones().astype(jnp.bfloat16)) == BYTES


def test_of_a_condition_the_cheaper_branch_runs():
    def function(flag, x):
        return jax.lax.cond(flag, lambda x: jnp.sum(jnp.sin(jax.lax.optimization_barrier(x + 1))), lambda x: 0.0, x)

    assert moved(function, True, ones()) < BYTES


def test_a_loop_counts_each_turn():
    def function(x):
        return jax.lax.fori_loop(0, 5, lambda i, x: jnp.sin(x) * 2, x)

    assert 10 * BYTES <= moved(function, ones()) <= 14 * BYTES  # 2 passes a turn, and copies around the loop


def test_what_is_cut_from_a_buffer_costs_its_own_size():
    assert moved(lambda x: 2 * x[100:200], ones()) == pytest.approx(2 * 400, abs=SCALARS)
    # 3 x + 2 is made only where it is needed
    assert moved(lambda x: (3 * x + 2)[100:200], ones()) == pytest.approx(2 * 400, abs=SCALARS)


FUSED_CUT = """\
%fused (p.0: f32[1000], p.1: f32[10]) -> f32[10] {
  %p.0 = f32[1000]{0} parameter(0)
  %p.1 = f32[10]{0} parameter(1)
  %square = f32[1000]{0} multiply(%p.0, %p.0)
  %cut.0 = f32[10]{0} slice(%square), slice={[0:10]}
  %cut.1 = f32[10]{0} slice(%square), slice={[90:100]}
  %sum = f32[10]{0} add(%cut.0, %cut.1)
  ROOT %all = f32[10]{0} add(%sum, %p.1)
}

ENTRY %main (x: f32[1000], y: f32[10]) -> f32[10] {
  %x = f32[1000]{0} parameter(0)
  %y = f32[10]{0} parameter(1)
  ROOT %made = f32[10]{0} fusion(%x, %y), kind=kLoop, calls=%fused
}
"""


def test_two_pieces_of_something_made_cost_both():
    assert roofline.program_bytes(FUSED_CUT) == 2 * 40 + 40 + 40


def test_what_is_written_into_a_donated_buffer_costs_its_own_size():
    def function(x, y):
        return jax.lax.dynamic_update_slice(x, y, (100,))

    assert moved(function, ones(), ones(64), donate=0) == pytest.approx(2 * 4 * 64, abs=SCALARS)


MODULE = """\
HloModule jit_step, entry_computation_layout={(f32[8,4]{1,0})->f32[8,4]{1,0}}

%fused (p.0: f32[8,4], p.1: f32[100]) -> (f32[8,4], bf16[4]) {
  %p.0 = f32[8,4]{1,0} parameter(0)
  %p.1 = f32[100]{0} parameter(1)
  %cut = f32[4]{0} slice(%p.1), slice={[0:4]}
  %narrow = bf16[4]{0} convert(%cut)
  %twice = f32[8,4]{1,0} add(%p.0, %p.0)
  ROOT %both = (f32[8,4]{1,0}, bf16[4]{0}) tuple(%twice, %narrow)
}

%named (p.2: f32[8,4], p.3: f32[100]) -> (f32[8,4], bf16[4]) {
  %p.2 = f32[8,4]{1,0} parameter(0)
  %p.3 = f32[100]{0} parameter(1)
  ROOT %inner = (f32[8,4]{1,0}, /*index=1*/bf16[4]{0}) fusion(%p.2, %p.3), kind=kLoop, calls=%fused
}

ENTRY %main (x: f32[8,4], y: f32[100]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0), metadata={op_name="x (the first)"}
  %y = f32[100]{0} parameter(1)
  %made = (f32[8,4]{1,0}, bf16[4]{0}) call(%x, %y), to_apply=%named
  %first = f32[8,4]{1,0} get-tuple-element(%made), index=0
  %flat = f32[32]{0} bitcast(%first)
  ROOT %again = f32[8,4]{1,0} copy(%first)
}
"""


def test_a_module_is_read_from_its_text():
    fused = 128 + 16 + 128 + 8  # x, the piece of y, the sum, the narrow piece
    assert roofline.program_bytes(MODULE) == fused + 2 * 128


@pytest.mark.parametrize(
    ("shape", "size"),
    [("f32[8,4]{1,0}", 128), ("pred[]", 1), ("(f32[2]{0}, /*index=1*/s8[3]{0})", 11), ("c64[2]", 16), ("token[]", 0)],
)
def test_sizes_of_shapes(shape, size):
    assert roofline.size_of(shape) == size


@pytest.mark.parametrize(
    ("name", "rule", "passes"),
    [
        # One kernel a result on CPU: 3 for each moment and 4 for the parameter; the clip reads the gradient once more.
        ("optchain", "sgd", 3),
        ("optchain", "adam", 10),
        ("optchain", "clip+adamw", 11),
        ("handwritten", "clip+adamw", 11),
        # Its clip writes a temporary (2), and each moment reads that and the gradient (2).
        ("optax", "clip+adamw", 15),
    ],
)
def test_passes_of_a_step(name, rule, passes):
    if jax.default_backend() != "cpu":
        pytest.skip("counted for CPU")
    tree = [(300, 300)] * 2
    program = contenders.CONTENDERS[name](rule, tree)
    params = trees.fill(tree, 0)
    count = moved(program.step, params, program.init(params), params, donate=(0, 1))
    assert count / (2 * 300 * 300 * 4) == pytest.approx(passes, abs=0.01)


def test_bandwidth_is_a_positive_number():
    assert roofline.bandwidth(rows=8, columns=8, groups=1, calls=2) > 0
