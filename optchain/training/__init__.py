"""Training steps, compiled."""

from optchain.training.step import TrainState as TrainState, TrainStep as TrainStep, compile_train as compile_train
