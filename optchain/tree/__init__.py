"""Arithmetic, reductions and searches over pytrees."""

from optchain.tree.arithmetic import (
    add as add,
    add_scale as add_scale,
    clip as clip,
    conj as conj,
    div as div,
    full_like as full_like,
    mul as mul,
    ones_like as ones_like,
    real as real,
    scale as scale,
    sub as sub,
    where as where,
    zeros_like as zeros_like,
)
from optchain.tree.dtypes import cast as cast, cast_like as cast_like, dtype as dtype
from optchain.tree.norms import norm as norm
from optchain.tree.reductions import (
    allclose as allclose,
    max as max,
    min as min,
    size as size,
    sum as sum,
    vdot as vdot,
)
from optchain.tree.state import map_params as map_params
