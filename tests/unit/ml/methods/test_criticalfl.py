"""CriticalFL: gradient norms, and how many peers follow from them (ALGORITHMS §9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ml.clients.client import Client
from ml.errors import AggregationError, PayloadError
from ml.methods.criticalfl import CriticalFl, PeerCount, compute_squared_norm
from ml.methods.fedavg_p2p import FedAvgP2p
from ml.specs import Offer, Task
from ml.specs.methods.criticalfl import CriticalFlSpec
from ml.specs.methods.fedavg_p2p import FedAvgP2pSpec
from support.federation.peer_rounds import are_equal, get_id, get_model, make_peer_clients, run_peer_round, train_all
from support.federation.simulated import BEACON, MLP

NUM = {"num_peers": np.array([2], np.int64)}


def make_clients(num_clients: int = 4, **settings: Any) -> list[Client]:
    work = {} if "local_epochs" in settings else {"local_iterations": 3}
    settings = {"num_peers": 2, **work, **settings}
    return make_peer_clients(CriticalFl, CriticalFlSpec, settings, num_clients=num_clients)


def make_spec(**settings: Any) -> CriticalFlSpec:
    return CriticalFlSpec.from_mapping(settings, Task(MLP, (1, 8, 8), 10))


def run_checks(norms: list[float], num_peers: int, *, num_authors: int, window: int = 2) -> list[int]:
    """N_com after each check."""
    found, state = [], PeerCount.start(num_peers, window)
    for norm in norms:
        state = state.check(norm, num_authors, num_peers, 0.01)
        found.append(state.num_peers)
    return found


# ---- the rule


def test_peers_double_in_the_first_five_checks_whatever_the_norms() -> None:
    assert run_checks([0, 0, 0, 0, 0], 1, num_authors=100) == [2, 4, 8, 16, 32]


def test_no_more_than_three_quarters_of_the_authors_and_never_again_after_that() -> None:
    # 8 authors: at most 6. After the sixth check the means fall (4, then 2.5), later they grow again
    norms = [4, 4, 4, 4, 4, 1, 0.5, 100, 100]
    assert run_checks(norms, 2, num_authors=8) == [4, 6, 6, 6, 6, 3, 2, 2, 2]


def test_three_quarters_of_the_authors_are_rounded_down() -> None:
    assert run_checks([0, 0, 0], 2, num_authors=9) == [4, 6, 6]  # of 6.75


def test_growing_norms_double_them_as_long_as_they_grow_by_more_than_a_hundredth() -> None:
    # means of two: 1, 1 (check 6 does not grow), 1.005 (by less), 1.5 (by more)
    assert run_checks([1, 1, 1, 1, 1, 1, 1.01, 1.99], 1, num_authors=1000) == [2, 4, 8, 16, 32, 16, 8, 16]


def test_halving_rounds_up_and_stops_where_it_began() -> None:
    assert run_checks([1, 1, 1, 1, 1, 0.5, 0.2, 0.1], 3, num_authors=1000) == [6, 12, 24, 48, 96, 48, 24, 12]
    state = PeerCount(7, (1.0, 1.0, 1.0), num_checks=5)
    assert [state.check(0.1, 100, least, 0.01).num_peers for least in (1, 5)] == [4, 5]


def test_a_federation_too_small_for_more_keeps_the_number_it_began_with() -> None:
    assert run_checks([1, 1, 1], 5, num_authors=4) == [5, 5, 5]


def test_a_count_is_the_same_after_a_checkpoint() -> None:
    state = PeerCount.start(2, 10).check(0.5, 8, 2, 0.01).check(0.25, 8, 2, 0.01)
    assert PeerCount.from_arrays(state.to_arrays()) == state
    assert (state.num_peers, state.num_checks, state.is_spent, len(state.window)) == (6, 2, True, 11)


# ---- the norms


def test_a_squared_norm_is_over_all_parameters() -> None:
    assert compute_squared_norm([torch.tensor([3.0, 4.0]), torch.tensor([[1.0], [2.0]])]) == pytest.approx(30)


def test_the_norm_is_that_of_the_step_that_a_model_takes() -> None:
    (client,) = make_clients(num_clients=1, local_iterations=1, lr=0.1)
    before = get_model(client)
    client.train(1, BEACON)
    after = get_model(client)
    squares = sum(float(((after[name] - before[name]).astype(np.float64) ** 2).sum()) for name in before)
    # w' - w = -lr * g, so lr * ||g||^2 = ||w' - w||^2 / lr
    assert client.state.arrays["norm"][0] == pytest.approx(squares / 0.1, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "height", "expected"),
    [
        ({"local_epochs": 2}, 1, 0.1 * (25 + 1) / 2),
        ({"local_iterations": 2}, 1, 0.1 * (25 + 1) / 2),
        ({"local_epochs": 1}, 1, 0.1 * (25 + 1)),
        ({"local_epochs": 2, "decay": 0.5}, 3, 0.025 * (25 + 1) / 2),
    ],
)
def test_squares_are_summed_over_steps_and_averaged_over_epochs(
    settings: dict[str, Any], height: int, expected: float
) -> None:
    (client,) = make_clients(num_clients=1, lr=0.1, **settings)
    watch = client.begin(height, BEACON).prepared.on_gradients
    assert watch is not None
    for gradients in ([torch.tensor([3.0, 4.0])], [torch.tensor([0.6]), torch.tensor([[0.8]])]):
        assert watch(gradients) is gradients
    assert client.state.arrays["norm"] == pytest.approx(np.array([expected]), rel=1e-6)


def test_a_phase_begins_with_a_norm_of_zero() -> None:
    (client,) = make_clients(num_clients=1, lr=1e-6)
    seen = []
    for height in (1, 3, 5):
        client.train(height, BEACON)
        seen.append(float(client.state.arrays["norm"][0]))
    assert max(seen) < 1.5 * min(seen)


# ---- a federation


def test_watching_gradients_does_not_change_the_training() -> None:
    critical = make_clients(check_every=100, momentum=0.5, weight_decay=0.01)
    settings = {"num_peers": 2, "local_iterations": 3, "momentum": 0.5, "weight_decay": 0.01}
    plain = make_peer_clients(FedAvgP2p, FedAvgP2pSpec, settings)
    for height in (1, 2):
        run_peer_round(critical, height)
        run_peer_round(plain, height)
    for one, other in zip(critical, plain, strict=True):
        assert are_equal(get_model(one), get_model(other))


def test_a_client_draws_as_many_as_it_has_said_it_would() -> None:
    clients = make_clients(num_clients=6, num_peers=1)
    assert [metrics["peers"] for metrics in run_peer_round(clients, 1)] == [1] * 6
    block = train_all(clients, 2)  # the first check: all double
    assert block.aggregate is not None
    assert block.aggregate["unit/num_peers"].tolist() == [[2]] * 6
    assert [block.apply(client, i)["peers"] for i, client in enumerate(clients)] == [2] * 6
    assert [metrics["peers"] for metrics in run_peer_round(clients, 3)] == [2] * 6
    assert [metrics["peers"] for metrics in run_peer_round(clients, 4)] == [4] * 6  # and no more: 3/4 of 6
    assert [metrics["peers"] for metrics in run_peer_round(clients, 6)] == [4] * 6


def test_a_round_in_which_nobody_has_said_a_number_is_refused() -> None:
    (client,) = make_clients(num_clients=1)
    before = client.state_arrays()
    with pytest.raises(AggregationError, match="round 1: expected unit in the aggregate, got none"):
        client.apply(1, None, me=get_id(0), offers=[Offer(get_id(0), 1, {})])
    assert are_equal(client.state_arrays(), before)


def test_before_the_first_block_nobody_checks() -> None:
    clients = make_clients()
    block = train_all(clients, 2)
    assert block.aggregate is not None
    assert block.aggregate["unit/num_peers"].tolist() == [[2]] * 4
    for client in clients:
        assert client.state.arrays["count"].tolist() == [2, 0, 0]
        assert not client.state.arrays["window"].any()


def test_everyone_reads_the_number_of_an_author_in_its_row() -> None:
    spec = make_spec(num_peers=1)
    offers = [Offer(get_id(i), 1, {"g": bytes([i, 0]), "h": bytes([i, 1])}) for i in range(4)]
    aggregate = {"unit/num_peers": np.array([[3], [1], [2], [50]])}
    drawn = [len(spec.draw(BEACON, get_id(i), offers, aggregate)) for i in range(4)]
    assert drawn == [3, 1, 2, 3]
    assert [len(spec.wanted(1, BEACON, get_id(i), offers, aggregate)) for i in range(4)] == [6, 2, 4, 6]
    assert spec.wanted(1, BEACON, get_id(7), offers, aggregate) == ()


@pytest.mark.parametrize("num", [1, 0, -1, 1 << 31])
def test_a_number_that_the_rule_never_comes_to_is_refused(num: int) -> None:
    spec = make_spec(num_peers=2)
    spec.validate_payload("unit", NUM, 1)
    with pytest.raises(PayloadError, match=f"'num_peers': expected numbers from 2 to 2147483647, got {num}"):
        spec.validate_payload("unit", {"num_peers": np.array([num], np.int64)}, 1)
