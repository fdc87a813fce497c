"""Arguments and builders that `transform` refuses."""

import pytest

import optchain


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: optchain.sgd("0.1"), "sgd: learning_rate is '0.1'; pass a number or a schedule"),
        (lambda: optchain.sgd([0.1]), r"sgd: learning_rate is \[0.1\]; pass a number or a schedule"),
        (lambda: optchain.scale(None), "scale: step_size is None; pass a number"),
        (lambda: optchain.scale(len), "scale: step_size is .*; pass a number"),
        (lambda: optchain.adam(0.1, b1=None), "adam: b1 is None; pass a number"),
        (lambda: optchain.adam(0.1, eps="1e-8"), "adam: eps is '1e-8'; pass a number"),
        (lambda: optchain.scale_by_schedule(0.1), "scale_by_schedule: step_size_fn is 0.1; pass a schedule"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_by_name(build, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        build()


def test_a_builder_may_return_a_pair_made_elsewhere_and_nothing_else():
    @optchain.transform
    def foreign():
        return optchain.GradientTransformation(lambda params: (), lambda updates, state, params=None: (updates, state))

    assert repr(foreign()) == "foreign()"
    assert foreign().update(2.0, (), value=1.0) == (2.0, ())

    @optchain.transform
    def number():
        return 3

    with pytest.raises(TypeError, match=r"^number: .* 3, not a pair of init and update"):
        number()
