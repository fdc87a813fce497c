"""Composable gradient transformations for JAX: optimizers as pairs of pure functions over pytrees."""

from optchain import schedules as schedules, transforms as transforms, tree as tree
from optchain.core.basic import (
    identity as identity,
    set_to_zero as set_to_zero,
    stateless as stateless,
    stateless_with_tree_map as stateless_with_tree_map,
)
from optchain.core.chain import chain as chain, named_chain as named_chain
from optchain.core.leaves import Slot as Slot, leafwise as leafwise, safe_increment as safe_increment
from optchain.core.masks import MaskedNode as MaskedNode
from optchain.core.pair import (
    EmptyState as EmptyState,
    GradientTransformation as GradientTransformation,
    GradientTransformationExtraArgs as GradientTransformationExtraArgs,
    OptState as OptState,
    Params as Params,
    ScalarOrSchedule as ScalarOrSchedule,
    Schedule as Schedule,
    TransformInitFn as TransformInitFn,
    TransformUpdateExtraArgsFn as TransformUpdateExtraArgsFn,
    TransformUpdateFn as TransformUpdateFn,
    Updates as Updates,
    with_extra_args_support as with_extra_args_support,
)
from optchain.core.plan import MaskedState as MaskedState
from optchain.core.value import schedule as schedule, transform as transform
from optchain.optimizers.adam import (
    ScaleByAdamState as ScaleByAdamState,
    adam as adam,
    adamw as adamw,
    scale_by_adam as scale_by_adam,
)
from optchain.optimizers.sgd import sgd as sgd
from optchain.schedules import (
    constant_schedule as constant_schedule,
    cosine_decay_schedule as cosine_decay_schedule,
    cosine_onecycle_schedule as cosine_onecycle_schedule,
    exponential_decay as exponential_decay,
    join_schedules as join_schedules,
    linear_onecycle_schedule as linear_onecycle_schedule,
    linear_schedule as linear_schedule,
    piecewise_constant_schedule as piecewise_constant_schedule,
    piecewise_interpolate_schedule as piecewise_interpolate_schedule,
    polynomial_schedule as polynomial_schedule,
    sgdr_schedule as sgdr_schedule,
    warmup_constant_schedule as warmup_constant_schedule,
    warmup_cosine_decay_schedule as warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule as warmup_exponential_decay_schedule,
)
from optchain.training import TrainState as TrainState, TrainStep as TrainStep, compile_train as compile_train
from optchain.transforms.accumulation import (
    EmaState as EmaState,
    TraceState as TraceState,
    ema as ema,
    trace as trace,
)
from optchain.transforms.clipping import (
    AdaptiveGradClipState as AdaptiveGradClipState,
    ClipByGlobalNormState as ClipByGlobalNormState,
    ClipState as ClipState,
    adaptive_grad_clip as adaptive_grad_clip,
    clip as clip,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
)
from optchain.transforms.masking import PartitionState as PartitionState, masked as masked, partition as partition
from optchain.transforms.packing import (
    flatten as flatten,
    pack_state as pack_state,
    packed as packed,
    unpack_state as unpack_state,
)
from optchain.transforms.scaling import (
    ScaleByScheduleState as ScaleByScheduleState,
    ScaleState as ScaleState,
    scale as scale,
    scale_by_learning_rate as scale_by_learning_rate,
    scale_by_schedule as scale_by_schedule,
)
from optchain.transforms.weight_decay import (
    AddDecayedWeightsState as AddDecayedWeightsState,
    WeightDecaySchedule as WeightDecaySchedule,
    add_decayed_weights as add_decayed_weights,
)
from optchain.tree.norms import global_norm as global_norm
from optchain.tree.updates import (
    apply_updates as apply_updates,
    incremental_update as incremental_update,
    periodic_update as periodic_update,
)

__version__ = "0.1.0"
