"""The schedule of the learning rate over a run's rounds, held to torch's own schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from ml.clients.alone import TrainingAlone
from ml.errors import SpecError
from ml.specs import get_spec
from ml.specs.base import MethodSpec
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.schedule import SCHEDULES
from support.federation.simulated import make_digit_clients

MLP = {"name": "mlp", "hidden": [4]}
BEACON = bytes(32)


def make_spec(rounds: int, name: str = "fedavg", **method: Any) -> MethodSpec:
    return get_spec({"name": name, "lr": 0.1, **method}, MLP, 10, (1, 8, 8), rounds=rounds)


def list_rates(rounds: int, **method: Any) -> list[float]:
    spec = make_spec(rounds, **method)
    return [spec.compute_lr(r) for r in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("method", "make"),
    [
        ({"schedule": "cosine"}, lambda sgd: lr_scheduler.CosineAnnealingLR(sgd, 10)),
        ({"schedule": "cosine", "lr_min": 0.02}, lambda sgd: lr_scheduler.CosineAnnealingLR(sgd, 10, 0.02)),
        ({"schedule": "linear"}, lambda sgd: lr_scheduler.LinearLR(sgd, 1.0, 0.0, 10)),
        ({"schedule": "step", "step_rounds": 3}, lambda sgd: lr_scheduler.StepLR(sgd, 3)),
        ({"schedule": "step", "step_rounds": 4, "step_factor": 0.5}, lambda sgd: lr_scheduler.StepLR(sgd, 4, 0.5)),
        ({"schedule": "constant"}, lambda sgd: lr_scheduler.ConstantLR(sgd, 1.0)),
        ({"schedule": "cosine", "warmup_rounds": 3, "lr_min": 0.02}, None),
    ],
)
def test_schedules_are_torchs(
    method: dict[str, Any], make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler] | None
) -> None:
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    if make is None:
        warmup = lr_scheduler.LinearLR(sgd, 0.25, 1.0, 3)
        after = lr_scheduler.CosineAnnealingLR(sgd, 7, 0.02)
        theirs: lr_scheduler.LRScheduler = lr_scheduler.SequentialLR(sgd, [warmup, after], [3])
    else:
        theirs = make(sgd)
    expected = []
    for _ in range(10):
        expected.append(sgd.param_groups[0]["lr"])
        sgd.step()
        theirs.step()
    assert list_rates(10, **method) == pytest.approx(expected)


def test_a_warm_up_rises_to_the_learning_rate_and_may_stand_alone() -> None:
    assert list_rates(5, warmup_rounds=3) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
    assert list_rates(4, warmup_rounds=1, decay=0.5) == pytest.approx([0.05, 0.05, 0.025, 0.0125])


def test_without_a_schedule_all_is_as_it_was_and_nothing_is_written_down() -> None:
    assert list_rates(4, decay=0.5) == [0.1, 0.05, 0.025, 0.0125]
    assert not make_spec(4).to_mapping().keys() & {"schedule", "warmup_rounds", "lr_min", "step_rounds", "step_factor"}
    assert Hyperparameters().lr_schedule.kind is None


def test_rounds_beyond_those_that_were_planned_stay_at_the_lowest() -> None:
    spec = make_spec(4, schedule="cosine", lr_min=0.01)
    assert [spec.compute_lr(r) for r in (5, 6, 50)] == pytest.approx([0.01] * 3)


def test_rounds_that_train_on_nothing_of_the_methods_own_do_not_count() -> None:
    spec = make_spec(6, "fededs", schedule="linear")
    shared = spec.sharing_heights
    assert shared > 0
    assert spec.compute_lr(1) == 0.1
    assert spec.compute_lr(6 - shared) == pytest.approx(0.1 / (6 - shared))


@pytest.mark.parametrize(
    ("method", "rounds", "path", "message"),
    [
        ({"schedule": "cosin"}, 9, "method.schedule", "expected one of constant, cosine, linear, step"),
        ({"schedule": "cosine"}, 0, "rounds", "cosine expects a number of rounds"),
        ({"schedule": "linear"}, 0, "rounds", "linear expects a number of rounds"),
        ({"schedule": "cosine", "decay": 0.9}, 9, "method.decay", "expected 1 with schedule: cosine"),
        ({"schedule": "step"}, 9, "method.step_rounds", "a number of rounds with schedule: step"),
        ({"step_rounds": 3}, 9, "method.step_rounds", "expected none without schedule: step"),
        ({"step_factor": 0.5}, 9, "method.step_factor", "expected none without schedule: step"),
        ({"schedule": "step", "step_rounds": 3, "step_factor": 1}, 9, "method.step_factor", r"in \(0, 1\)"),
        ({"lr_min": 0.01}, 9, "method.lr_min", "expected none without schedule"),
        ({"schedule": "cosine", "lr_min": 0.1}, 9, "method.lr_min", "a number below lr, 0.1, got 0.1"),
        ({"warmup_rounds": 9}, 9, "method.warmup_rounds", "expected fewer than all 9 rounds"),
        ({"warmup_rounds": 0}, 9, "method.warmup_rounds", "a whole number from 1"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_its_place(
    method: dict[str, Any], rounds: int, path: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        make_spec(rounds, **method)
    assert caught.value.path == path


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_clients_and_training_alone_go_by_it(schedule: str) -> None:
    method = {"name": "fedavg", "lr": 0.1, "local_iterations": 1, "schedule": schedule, "warmup_rounds": 1}
    if schedule == "step":
        method["step_rounds"] = 1
    (client,) = make_digit_clients(method, num_clients=1, partition="iid", model=MLP, rounds=4)
    alone = TrainingAlone(client)
    expected = [client.spec.compute_lr(r) for r in range(1, 5)]
    assert expected[0] == pytest.approx(0.05)
    for each in (client, alone.get_client()):
        assert [each.begin(r, BEACON).sgd.lr for r in range(1, 5)] == expected
