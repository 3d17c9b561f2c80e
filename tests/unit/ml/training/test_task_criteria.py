"""The losses of labels and of targets: numbers that a hand can check."""

from __future__ import annotations

import math

import pytest
import torch

from ml.errors import SpecError
from ml.specs import METHODS, get_spec
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.task_rules import LOSSES
from ml.tasks import TASKS
from ml.training.criterion import make_criterion
from ml.training.task_criteria import compute_label_weights

MLP = {"name": "mlp", "hidden": [4]}
Y = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])


def test_binary_cross_entropy_is_the_mean_over_samples_and_labels() -> None:
    criterion = make_criterion(Hyperparameters(), Y, 2, kind="multilabel")
    logits = torch.tensor([[0.0, math.log(3.0)]])  # probabilities 1/2 and 3/4
    expected = (math.log(2) + math.log(4)) / 2
    assert float(criterion(logits, torch.tensor([[1.0, 0.0]]))) == pytest.approx(expected)


def test_smoothing_leaves_half_of_it_to_the_other_answer() -> None:
    criterion = make_criterion(Hyperparameters(label_smoothing=0.2), Y, 2, kind="multilabel")
    loss = float(criterion(torch.tensor([[math.log(3.0)]]), torch.tensor([[1.0]])))
    assert loss == pytest.approx(-(0.9 * math.log(0.75) + 0.1 * math.log(0.25)))


def test_weights_make_up_for_how_rare_a_label_is() -> None:
    assert compute_label_weights(Y).tolist() == pytest.approx([1 / 3, 3.0])
    assert compute_label_weights(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).tolist() == [1.0, 1.0]
    criterion = make_criterion(Hyperparameters(class_weights="own"), Y, 2, kind="multilabel")
    assert float(criterion(torch.zeros(1, 2), torch.ones(1, 2))) == pytest.approx(math.log(2) * (1 / 3 + 3) / 2)


def test_focal_loss_passes_over_what_is_right() -> None:
    criterion = make_criterion(Hyperparameters(loss="focal"), Y, 2, kind="multilabel")
    logits = torch.tensor([[math.log(3.0)]])
    assert float(criterion(logits, torch.tensor([[1.0]]))) == pytest.approx(-(0.25**2) * math.log(0.75))
    assert float(criterion(logits, torch.tensor([[0.0]]))) == pytest.approx(-(0.75**2) * math.log(0.25))


def test_squared_and_hubers_error() -> None:
    values, y = torch.tensor([[0.5], [4.0]]), torch.zeros(2, 1)
    assert float(make_criterion(Hyperparameters(), y, 1, kind="regression")(values, y)) == pytest.approx(16.25 / 2)
    huber = make_criterion(Hyperparameters(loss="huber"), y, 1, kind="regression")
    assert float(huber(values, y)) == pytest.approx((0.125 + 3.5) / 2)
    wide = make_criterion(Hyperparameters(loss="huber", huber_delta=2.0), y, 1, kind="regression")
    assert float(wide(values, y)) == pytest.approx((0.125 + 2 * (4 - 1)) / 2)


@pytest.mark.parametrize("kind", TASKS)
def test_each_task_has_its_losses_and_no_others(kind: str) -> None:
    everything = {loss for losses in LOSSES.values() for loss in losses}
    for loss in everything:
        method = {"name": "fedavg", "loss": loss}
        if loss in LOSSES[kind]:
            assert get_spec(method, MLP, 3, [5, 1, 1], kind=kind).hyperparameters.loss == loss
        else:
            with pytest.raises(SpecError, match=f"method.loss: expected .* for task {kind}, got {loss}"):
                get_spec(method, MLP, 3, [5, 1, 1], kind=kind)


@pytest.mark.parametrize(
    "setting", [{"label_smoothing": 0.1}, {"class_weights": "own"}, {"sampling": "balanced"}], ids=str
)
def test_a_regression_refuses_what_only_classes_have(setting: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=f"method.{next(iter(setting))}: expected .* for task regression"):
        get_spec({"name": "fedavg", **setting}, MLP, 1, [5, 1, 1], kind="regression")


def test_prototypes_need_classes_and_the_refusal_names_those_that_do_without() -> None:
    without = {"local", "fedavg", "fedprox", "fednova", "scaffold", "blade_fl", "moon", "swim", "fedintr"}
    without |= {"fedrep", "ditto", "fedbn", "fedala", "feddbe"}
    without |= {"fedper", "fedavg_p2p", "dfedavgm", "dispfl", "criticalfl"}
    for name, spec in METHODS.items():
        assert ("regression" in spec.tasks) == ("multilabel" in spec.tasks) == (name in without), name
    with pytest.raises(SpecError, match="dfpl trains classification alone, got regression: expected one of local"):
        get_spec({"name": "dfpl"}, MLP, 1, [5, 1, 1], kind="regression")


def test_one_output_is_enough_for_labels_and_targets_alone() -> None:
    assert get_spec({"name": "fedavg"}, MLP, 1, [5, 1, 1], kind="regression").task.num_classes == 1
    with pytest.raises(SpecError, match="expected 2 to 65536 classes, got 1"):
        get_spec({"name": "fedavg"}, MLP, 1, [5, 1, 1])


def test_the_chain_and_the_methods_know_the_same_tasks() -> None:
    from chain.run import TASKS as CHAIN_TASKS

    assert CHAIN_TASKS == TASKS
