"""Update rules, one family a file."""

from optchain.optimizers.adam import (
    ScaleByAdamState as ScaleByAdamState,
    adam as adam,
    adamw as adamw,
    scale_by_adam as scale_by_adam,
)
from optchain.optimizers.sgd import sgd as sgd
