"""Links that are no update rule: clipping, scaling, averaging, decay, masking."""

from optchain.core.basic import (
    identity as identity,
    set_to_zero as set_to_zero,
    stateless as stateless,
    stateless_with_tree_map as stateless_with_tree_map,
)
from optchain.core.chain import chain as chain, named_chain as named_chain
from optchain.core.masks import MaskedNode as MaskedNode
from optchain.core.plan import MaskedState as MaskedState
from optchain.transforms.accumulation import EmaState as EmaState, TraceState as TraceState, ema as ema, trace as trace
from optchain.transforms.clipping import (
    adaptive_grad_clip as adaptive_grad_clip,
    clip as clip,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
    unitwise_clip as unitwise_clip,
    unitwise_norm as unitwise_norm,
)
from optchain.transforms.masking import PartitionState as PartitionState, masked as masked, partition as partition
from optchain.transforms.packing import flatten as flatten, packed as packed
from optchain.transforms.scaling import (
    ScaleByScheduleState as ScaleByScheduleState,
    scale as scale,
    scale_by_learning_rate as scale_by_learning_rate,
    scale_by_schedule as scale_by_schedule,
)
from optchain.transforms.weight_decay import add_decayed_weights as add_decayed_weights
