"""Functions of the step count, for learning rates and other hyperparameters."""

from optchain.schedules.joining import join_schedules as join_schedules
from optchain.schedules.joining import sgdr_schedule as sgdr_schedule
from optchain.schedules.joining import warmup_constant_schedule as warmup_constant_schedule
from optchain.schedules.joining import warmup_cosine_decay_schedule as warmup_cosine_decay_schedule
from optchain.schedules.joining import warmup_exponential_decay_schedule as warmup_exponential_decay_schedule
from optchain.schedules.pieces import cosine_onecycle_schedule as cosine_onecycle_schedule
from optchain.schedules.pieces import linear_onecycle_schedule as linear_onecycle_schedule
from optchain.schedules.pieces import piecewise_constant_schedule as piecewise_constant_schedule
from optchain.schedules.pieces import piecewise_interpolate_schedule as piecewise_interpolate_schedule
from optchain.schedules.shapes import constant_schedule as constant_schedule
from optchain.schedules.shapes import cosine_decay_schedule as cosine_decay_schedule
from optchain.schedules.shapes import exponential_decay as exponential_decay
from optchain.schedules.shapes import linear_schedule as linear_schedule
from optchain.schedules.shapes import polynomial_schedule as polynomial_schedule
