"""DisPFL: masks, what they keep, what is sent of them and what comes back (ALGORITHMS §9, §12.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ml.clients.client import Client
from ml.errors import PayloadError, SpecError
from ml.methods.base import Round
from ml.methods.common.masks import apply_masks, compute_consensus, prune, regrow
from ml.methods.dispfl import DisPfl
from ml.methods.fedavg_p2p import FedAvgP2p
from ml.models import resolve_model
from ml.payload import Array, encode_arrays
from ml.seeding import numpy_rng
from ml.specs import Task
from ml.specs.methods.dispfl import MASK, DisPflSpec, Mask, compute_kept, pack_mask, unpack_mask
from ml.specs.methods.fedavg_p2p import FedAvgP2pSpec
from ml.training.optimizers import clip_gradients
from support.federation.peer_rounds import are_equal, get_id, get_model, make_peer_clients, run_peer_round, train_all
from support.federation.simulated import BEACON, MLP

SHAPE = (1, 8, 8)
FEW: dict[str, Any] = {"num_peers": 2, "local_iterations": 3}


def make_spec(rounds: int = 10, **settings: Any) -> DisPflSpec:
    return DisPflSpec.from_mapping(settings, Task(MLP, SHAPE, 10, rounds=rounds))


def make_clients(**settings: Any) -> list[Client]:
    return make_peer_clients(DisPfl, DisPflSpec, FEW | settings)


def floats(values: Sequence[Any]) -> Array:
    return np.array(values, np.float32)


def to_mask(bits: str) -> Mask:
    return np.array([bit == "1" for bit in bits])


def get_mask(client: Client, name: str, prefix: str = MASK) -> Mask:
    assert isinstance(client.spec, DisPflSpec)
    shape = client.spec.shapes[name]
    return unpack_mask(client.state.arrays[prefix + name], int(np.prod(shape))).reshape(shape)


def find_off_mask(client: Client) -> Array:
    """The weights that a client's mask does not keep."""
    assert isinstance(client.spec, DisPflSpec)
    parameters = get_model(client)
    return np.concatenate([parameters[name][~get_mask(client, name)] for name in client.spec.kept])


# ---- how much is kept


def test_entries_are_dealt_by_erdos_renyi_kernel() -> None:
    # 28 entries, 14 to keep; a keeps 1 * 4 / 4 = 1 of its own, b 10 / 24
    assert compute_kept({"a": (2, 2), "b": (4, 6)}, 0.5) == {"a": 4, "b": 10}
    # 102 entries, 51 to keep; a would keep 51 / 23 * 3 = 6.7 of its 2 and is whole; b keeps the other 49
    assert compute_kept({"a": (1, 2), "b": (10, 10)}, 0.5) == {"a": 2, "b": 49}
    # all dimensions of a kernel count: 8 / 12 against 40 / 900, 912 entries
    assert compute_kept({"a": (3, 2, 1, 2), "b": (30, 30)}, 0.5) == {"a": 12, "b": 444}


@pytest.mark.parametrize("density", [0.05, 0.3, 0.5, 0.9])
def test_the_whole_is_as_dense_as_asked_for(density: float) -> None:
    shapes = {"a": (64, 3, 5, 5), "b": (64, 64, 5, 5), "c": (384, 1600), "d": (10, 384)}
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    kept = compute_kept(shapes, density)
    assert sum(kept.values()) == pytest.approx(density * sum(sizes.values()), abs=len(shapes))
    assert all(1 <= num <= sizes[name] for name, num in kept.items())
    assert kept["c"] / sizes["c"] < kept["d"] / sizes["d"]


def test_density_one_keeps_everything_and_hardly_any_still_something() -> None:
    assert compute_kept({"a": (2, 3), "b": (7, 11)}, 1.0) == {"a": 6, "b": 77}
    assert compute_kept({"a": (2, 3), "b": (7, 11)}, 1e-9) == {"a": 1, "b": 1}


def test_biases_are_whole_and_so_is_a_tensor_too_small_to_be_thinned_out() -> None:
    # 64 x 64, 32 x 64 and 10 x 32 weights, 3232 to keep: all of the last, and 13 for each row and column of the others
    assert make_spec().kept == {"fc1.weight": 13 * 128, "fc2.weight": 13 * 96}


def test_a_buffer_of_a_users_own_model_is_sent_whole_whatever_its_shape() -> None:
    own = {"name": "a.b:make", "parameters": {"fc.weight": [10, 64]}, "buffers": {"table": [64, 64]}}
    own["plugin"] = {"name": "a", "version": "", "sha256": "0" * 64}
    model = {**own, "embedding": 64, "layers": [64], "classifier": ["fc.weight"]}
    spec = DisPflSpec.from_mapping({}, Task(model, SHAPE, 10, rounds=10))
    assert spec.kept == {"fc.weight": 320}
    assert spec.schemas(1)["model"].arrays["table"].shape == (64, 64)


# ---- worked numbers


def test_the_ratio_that_is_pruned_falls_to_zero() -> None:
    spec = make_spec(rounds=500)
    found = [spec.compute_prune_ratio(r + 1) for r in (0, 125, 250, 375, 500, 600)]
    assert found == pytest.approx([0.5, 0.426777, 0.25, 0.073223, 0, 0], abs=5e-7)


def test_consensus_is_the_mean_over_the_masks_that_have_the_coordinate() -> None:
    masks = [to_mask("1100"), to_mask("1010"), to_mask("1110")]
    kept = [floats(values) for values in ([2, 4], [4, 6], [6, 8, 2])]
    consensus = compute_consensus(list(zip(kept, masks, strict=True)), 4)
    assert consensus.tolist() == [4, 6, 4, 0]
    own = [apply_masks({"w": consensus.reshape(2, 2)}, {"w": mask})["w"].tolist() for mask in masks[:2]]
    assert own == [[[4, 6], [0, 0]], [[4, 0], [4, 0]]]


def test_a_whole_tensor_is_averaged_over_everyone() -> None:
    assert compute_consensus([(floats([[1, 2]]), None), (floats([[3, 6]]), None)], 2).tolist() == [2, 4]


def test_the_smallest_are_pruned_and_the_largest_gradients_regrown() -> None:
    mask, weights = to_mask("111011"), floats([0.5, -0.1, 3, 9, -2, 0.2])
    pruned, num = prune(mask, weights, 0.4)  # 2 of 5, and 9 is not its own
    assert (pruned.tolist(), num) == (to_mask("101010").tolist(), 2)
    assert prune(mask, weights, 0.41)[1] == 3  # rounded up
    grown = regrow(pruned, num, floats([9, 1, 9, -4, 9, 0.5]))
    assert grown.tolist() == to_mask("111110").tolist()


def test_random_regrowth_keeps_the_number_and_what_was_left() -> None:
    pruned = to_mask("1010" * 10)
    grown = regrow(pruned, 7, numpy_rng(1, "masks"))
    assert (grown.sum(), (grown & pruned).sum()) == (27, 20)
    assert grown.tolist() != regrow(pruned, 7, numpy_rng(2, "masks")).tolist()


def test_gradients_are_clipped_together() -> None:
    gradients = (torch.tensor([3.0]), torch.tensor([[4.0]]))
    assert [g.item() for g in clip_gradients(gradients, 1.0)] == pytest.approx([0.6, 0.8], rel=1e-5)
    assert [g.item() for g in clip_gradients(gradients, 10.0)] == [3, 4]


# ---- a client


def test_masks_differ_between_clients_and_not_between_runs() -> None:
    first, again = make_clients(), make_clients()
    train_all(first, 1)
    train_all(again, 2)  # its first phase, whenever that is
    for name in ("fc1.weight", "fc2.weight"):
        masks = [get_mask(client, name) for client in first]
        assert not np.array_equal(masks[0], masks[1])
        assert np.array_equal(masks[0], get_mask(again[0], name))


@pytest.mark.parametrize("regrow_by", ["random", "gradient"])
def test_the_model_stays_under_its_mask_and_the_mask_as_dense(regrow_by: str) -> None:
    clients = make_clients(regrow=regrow_by, momentum=0.9, weight_decay=0.01)
    spec = clients[0].spec
    assert isinstance(spec, DisPflSpec)
    for height in (1, 2, 3):
        block = train_all(clients, height)
        for i, client in enumerate(clients):
            assert not find_off_mask(client).any()
            before = {name: get_mask(client, name, "next/") for name in spec.kept}
            block.apply(client, i)
            assert not find_off_mask(client).any()
            for name, num in spec.kept.items():
                assert get_mask(client, name).sum() == num
                assert np.array_equal(get_mask(client, name), before[name])
            assert not any(name.startswith("next/") for name in client.state.arrays)


def test_half_of_a_mask_is_looked_for_anew_in_the_first_round_and_little_in_the_last() -> None:
    shares = []
    for height in (1, 10):
        clients = make_clients(regrow="gradient")
        train_all(clients, height)
        old, new = (get_mask(clients[0], "fc1.weight", prefix) for prefix in (MASK, "next/"))
        shares.append((old & ~new).sum() / old.sum())
    assert 0.2 < shares[0] <= 0.5
    assert shares[1] < 0.02


def test_training_changes_what_the_mask_keeps() -> None:
    (client, *_) = make_clients()
    before = get_model(client)
    client.train(1, BEACON)
    mask = get_mask(client, "fc2.weight")
    assert (before["fc2.weight"] != get_model(client)["fc2.weight"])[mask].mean() > 0.5


def test_no_step_is_longer_than_the_clipping_lets_it() -> None:
    client = make_clients(clip=1e-6, lr=0.1)[0]
    assert isinstance(client.method, DisPfl)
    client.method.get_own_masks(client.state, Round(1, 1, BEACON, client.seed))
    before = get_model(client)
    client.train(1, BEACON)
    moved = np.concatenate([(get_model(client)[name] - before[name]).reshape(-1) for name in before])
    assert 0 < np.linalg.norm(moved.astype(np.float64)) < 3 * 0.1 * 1.1e-6


def test_a_mask_regrows_where_the_gradients_of_one_batch_are_largest() -> None:
    client = make_clients(regrow="gradient")[0]
    method, round_ = client.method, Round(1, 1, BEACON, client.seed)
    assert isinstance(method, DisPfl)
    masks = method.get_own_masks(client.state, round_)
    gradients, weights = method.screen(client.state, round_.rng("masks")), get_model(client)
    for name, found in method.search(client.state, round_, masks).items():
        pruned, num = prune(masks[name], weights[name].reshape(-1), 0.5)
        assert np.array_equal(found, regrow(pruned, num, gradients[name]))


def test_a_mask_is_looked_for_elsewhere_in_every_round() -> None:
    client, method = make_clients()[0], DisPfl(make_spec(rounds=1_000_000))  # so that two rounds prune as many
    rounds = [Round(height, height, BEACON, client.seed) for height in (1, 1, 2)]
    masks = method.get_own_masks(client.state, rounds[0])
    first, again, second = (method.search(client.state, round_, masks) for round_ in rounds)
    for name in masks:
        assert np.array_equal(first[name], again[name])
        assert not np.array_equal(first[name], second[name])


def test_looking_at_gradients_leaves_running_statistics_alone() -> None:
    model = resolve_model({"name": "support.data.user_models:make_small", "args": {"width": 4}}, SHAPE, 10)
    (client,) = make_peer_clients(DisPfl, DisPflSpec, FEW | {"regrow": "gradient"}, num_clients=1, model=model)
    assert isinstance(client.method, DisPfl)
    before = get_model(client)
    client.state.model.train()
    client.method.screen(client.state, numpy_rng(1, "masks"))
    assert are_equal(get_model(client), before)


def test_one_that_takes_from_nobody_keeps_its_mask() -> None:
    clients = make_clients()
    block = train_all(clients, 1)
    before, model = get_mask(clients[0], "fc1.weight"), get_model(clients[0])
    block.apply(clients[0], 0, gone={get_id(i) for i in (1, 2, 3)})
    assert np.array_equal(get_mask(clients[0], "fc1.weight"), before)
    assert are_equal(get_model(clients[0]), model)
    assert not any(name.startswith("next/") for name in clients[0].state.arrays)


def test_one_that_has_lost_its_first_round_takes_from_the_others_all_the_same() -> None:
    clients, block = make_clients(), None
    lost = {i: client.state_arrays() for i, client in enumerate(clients)}
    block = train_all(clients, 1)
    mask = get_mask(clients[0], "fc1.weight")
    clients[0].load_state_arrays(lost[0])
    assert block.apply(clients[0], 0)["peers"] == 2
    assert np.array_equal(get_mask(clients[0], "fc1.weight"), mask)
    assert not find_off_mask(clients[0]).any()


def test_without_masks_it_is_the_mean_over_the_peers() -> None:
    dense = make_clients(density=1.0, clip=1e9)
    plain = make_peer_clients(FedAvgP2p, FedAvgP2pSpec, {**FEW, "weights": "uniform"})
    for height in (1, 2):
        run_peer_round(dense, height)
        run_peer_round(plain, height)
    for one, other in zip(dense, plain, strict=True):
        assert are_equal(get_model(one), get_model(other))


def test_the_number_of_rounds_must_be_known() -> None:
    with pytest.raises(SpecError, match="rounds: dispfl expects a number of rounds"):
        make_spec(rounds=0)


# ---- what is sent


def test_what_is_sent_is_the_model_under_its_mask_in_about_half_the_bytes() -> None:
    clients = make_clients()
    block = train_all(clients, 1)
    spec, client = clients[0].spec, clients[0]
    assert isinstance(spec, DisPflSpec)
    sent = block.blobs[block.offers[0].digests["model"]]
    parameters = get_model(client)
    for name, shape in spec.shapes.items():
        if name in spec.kept:
            whole = np.zeros(shape, np.float32)
            whole[unpack_mask(sent[MASK + name], whole.size).reshape(shape)] = sent[name]
            assert np.array_equal(whole, parameters[name])
        else:
            assert np.array_equal(sent[name], parameters[name])
    num_floats = sum(array.size for array in sent.values() if array.dtype == np.float32)
    num_biases = sum(array.size for name, array in parameters.items() if name.endswith("bias"))
    assert num_floats - num_biases == pytest.approx(0.5 * (spec.task.num_parameters - num_biases), abs=3)
    assert len(encode_arrays(sent)) == spec.schemas(1)["model"].max_bytes < 0.6 * spec.model_bytes


def make_payload(spec: DisPflSpec) -> dict[str, Array]:
    payload = {}
    for name, shape in spec.shapes.items():
        payload[name] = np.zeros(spec.kept.get(name, shape), np.float32)
        if name in spec.kept:
            payload[MASK + name] = pack_mask(np.arange(np.prod(shape)) < spec.kept[name])
    return payload


def test_masks_that_keep_another_number_are_refused() -> None:
    spec = DisPflSpec.from_mapping({}, Task({"name": "mlp", "hidden": [3]}, (1, 3, 3), 3, rounds=1))
    spec.validate_payload("model", make_payload(spec), 1)
    (name, num), *_ = spec.kept.items()
    assert num < 27
    for bits in ("1" * (num + 1), "1" * (num - 1), "0" * 27):
        mask = pack_mask(to_mask(bits.ljust(27, "0")))
        with pytest.raises(PayloadError, match=f"expected {num} entries kept, got {bits.count('1')}"):
            spec.validate_payload("model", {**make_payload(spec), MASK + name: mask}, 1)
    padded = pack_mask(to_mask("1" * (num - 1) + "0" * (27 - num + 1) + "1"))
    with pytest.raises(PayloadError, match="expected zeros after bit 27"):
        spec.validate_payload("model", {**make_payload(spec), MASK + name: padded}, 1)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("fc1.weight", np.zeros((64, 64), np.float32)),
        ("fc1.weight", np.full(1, np.nan, np.float32)),
        (MASK + "fc1.weight", np.zeros(513, np.uint8)),
        (MASK + "fc1.bias", np.zeros(8, np.uint8)),
    ],
)
def test_what_is_no_sparse_model_is_refused(name: str, array: Array) -> None:
    spec = make_spec()
    with pytest.raises(PayloadError, match="payload 'model'"):
        spec.validate_payload("model", {**make_payload(spec), name: array}, 1)
