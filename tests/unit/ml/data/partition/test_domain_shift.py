"""The five manners of seeing an image: what each keeps, what each changes, and that it is the same for everybody."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.clients.build import Federation, make_client, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data.base import Images
from ml.data.fit_input import fit
from ml.data.partition import ClientSplit, make_partition, parse_partition
from ml.data.partition.domain_shift import DOMAINS, NOISE_STD, apply_domain
from ml.data.readers.digits import load_digits
from ml.errors import DataError
from ml.seeding import get_partition_seed

SIZES = st.tuples(st.integers(1, 3), st.integers(3, 40), st.integers(3, 40))


def show(domain: str, x: Images, *, indices: list[int] | None = None, seed: int = 1, split: str = "train") -> Images:
    rows = np.arange(len(x)) if indices is None else np.array(indices, np.int64)
    return apply_domain(domain, x, rows, seed=seed, split=split)


def draw_images(n: int, shape: tuple[int, int, int], seed: int = 0) -> Images:
    """Pixels that are 0..255 of 256ths, of which float32 takes sums and differences exactly."""
    return np.random.default_rng(seed).integers(0, 257, (n, *shape)).astype(np.float32) / np.float32(256)


@pytest.mark.parametrize("domain", DOMAINS)
@given(shape=SIZES, seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_what_comes_out_is_what_went_in_but_for_the_pixels(domain: str, shape: tuple[int, int, int], seed: int) -> None:
    x = draw_images(3, shape, seed)
    before = x.copy()
    shown = show(domain, x)
    assert shown.dtype == np.float32
    assert shown.shape == x.shape
    assert 0 <= shown.min() <= shown.max() <= 1
    assert np.array_equal(x, before)
    assert np.array_equal(show(domain, x[1:2], indices=[1]), shown[1:2])  # a sample is shown alike in any company
    assert len(show(domain, x[:0])) == 0


def test_identity_and_inversion_by_hand() -> None:
    x = np.array([0, 0.25, 1] * 3, np.float32).reshape(1, 1, 3, 3)
    assert np.array_equal(show("identity", x), x)
    assert np.array_equal(show("inversion", x).ravel()[:3], [1, 0.75, 0])
    assert np.array_equal(show("inversion", show("inversion", x)), x)


def test_noise_is_of_the_sample_the_split_and_the_seed() -> None:
    x = np.full((4, 1, 3, 3), 0.5, np.float32)
    shown = show("noise", x)
    assert len({row.tobytes() for row in shown}) == 4
    assert np.array_equal(show("noise", x[:2], indices=[3, 0]), shown[[3, 0]])
    assert not np.array_equal(show("noise", x, split="test"), shown)
    assert not np.array_equal(show("noise", x, seed=2), shown)


def test_noise_has_its_deviation_where_nothing_is_clipped_and_half_of_it_goes_at_the_end() -> None:
    grey = np.full((50, 1, 28, 28), 0.5, np.float32)
    noise = show("noise", grey) - grey
    assert noise.mean() == pytest.approx(0, abs=0.005)
    assert noise.std() == pytest.approx(NOISE_STD, rel=0.03)
    assert np.mean(show("noise", np.zeros_like(grey)) == 0) == pytest.approx(0.5, abs=0.02)


def test_rotation_keeps_the_centre_and_what_is_round() -> None:
    x = draw_images(2, (1, 9, 9))
    assert np.allclose(show("rotation", x)[:, :, 4, 4], x[:, :, 4, 4], atol=1e-6)
    y, x_ = np.mgrid[-14:15, -14:15]
    hill = np.clip(1 - np.hypot(y, x_) / 12, 0, 1).astype(np.float32)[None, None]
    assert np.abs(show("rotation", hill) - hill).max() < 0.03


def test_rotation_turns_counter_clockwise_by_its_angle() -> None:
    x = np.zeros((1, 1, 41, 41), np.float32)
    x[0, 0, 20, 35] = 1  # 15 to the right of the centre
    mass = show("rotation", x)[0, 0]
    rows, columns = np.mgrid[0:41, 0:41]
    up, right = 20 - (rows * mass).sum() / mass.sum(), (columns * mass).sum() / mass.sum() - 20
    assert math.degrees(math.atan2(up, right)) == pytest.approx(25, abs=1)
    assert math.hypot(up, right) == pytest.approx(15, abs=0.3)


def test_rotation_fills_the_corners_with_black_and_keeps_a_disc_of_white() -> None:
    white = show("rotation", np.ones((1, 1, 16, 16), np.float32))[0, 0]
    assert [white[0, 0], white[0, -1], white[-1, 0], white[-1, -1]] == [0, 0, 0, 0]
    rows, columns = np.mgrid[0:16, 0:16] - 7.5
    assert np.allclose(white[np.hypot(rows, columns) < 7], 1, atol=1e-6)


def test_blur_of_a_point_is_the_kernel() -> None:
    x = np.zeros((1, 1, 8, 8), np.float32)
    x[0, 0, 4, 3] = 1
    expected = np.outer([1, 2, 1], [1, 2, 1]) / 16
    shown = show("blur", x)[0, 0]
    assert np.array_equal(shown[3:6, 2:5], expected)
    assert shown.sum() == 1


def test_blur_keeps_the_mean_of_what_lies_inside_and_anything_even() -> None:
    for size in (8, 28, 64):
        even = np.full((1, 3, size, size), 0.25, np.float32)
        assert np.allclose(show("blur", even), even, atol=1e-6)
        x = np.zeros((2, 1, size, size), np.float32)
        x[:, :, size // 3 : -(size // 3), size // 3 : -(size // 3)] = draw_images(2, (1, size, size))[
            :, :, size // 3 : -(size // 3), size // 3 : -(size // 3)
        ]
        assert np.allclose(show("blur", x).mean((2, 3)), x.mean((2, 3)), atol=1e-6)


def test_blur_grows_with_the_image() -> None:
    def measure_radius(size: int) -> int:
        x = np.zeros((1, 1, size, size), np.float32)
        x[0, 0, size // 2, size // 2] = 1
        return int(np.count_nonzero(show("blur", x)[0, 0, size // 2]) - 1) // 2

    assert [measure_radius(size) for size in (8, 27, 28, 32, 64)] == [1, 1, 2, 2, 4]


@pytest.mark.parametrize(
    ("domain", "x", "message"),
    [
        ("sepia", np.zeros((1, 1, 8, 8), np.float32), "expected one of identity, inversion, noise, rotation, blur"),
        ("blur", np.zeros((1, 30, 1, 1), np.float32), r"images of at least 3 x 3 pixels, got samples of \[30, 1, 1\]"),
        ("inversion", np.full((1, 1, 8, 8), 2, np.float32), "expected pixels in 0..1, got 2 to 2"),
        ("identity", np.full((1, 1, 8, 8), np.nan, np.float32), "expected pixels in 0..1, got nan"),
    ],
)
def test_what_is_no_image_in_0_to_1_is_refused(domain: str, x: Images, message: str) -> None:
    with pytest.raises(DataError, match=message):
        show(domain, x)


INPUT: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "mean": [0.25], "std": [0.5]}
FEDERATION = Federation(
    method={"name": "local"},
    model={"name": "mlp", "hidden": [4]},
    classes=[str(c) for c in range(10)],
    input=INPUT,
    num_members=6,
)


@pytest.fixture(scope="module")
def splits() -> list[ClientSplit]:
    train, test = load_digits()
    return make_partition("domains", train.y, test.y, 6, get_partition_seed(3))


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return make_clients(FEDERATION, data={"format": "digits"}, partition="domains", run_seed=3)


def test_clients_see_their_samples_in_their_domain_and_then_normalised(
    splits: list[ClientSplit], clients: list[Client]
) -> None:
    train, test = load_digits()
    for client, split in zip(clients, splits, strict=True):
        assert split.domain is not None
        for name, dataset, rows, seen in (
            ("train", train, split.train, client.state.data.train),
            ("test", test, split.test, client.state.data.matched),
        ):
            shown = apply_domain(
                split.domain, np.asarray(dataset.x[rows], np.float32), rows, seed=get_partition_seed(3), split=name
            )
            np.testing.assert_allclose(seen.x.numpy(), (shown - 0.25) / 0.5, rtol=1e-6)
            assert np.array_equal(seen.y.numpy(), dataset.y[rows])


def test_the_global_test_set_is_every_sample_once_in_the_domain_it_is_matched_in(
    splits: list[ClientSplit], clients: list[Client]
) -> None:
    everyone = clients[0].state.data.everyone
    assert len(everyone.y) == 359
    for client, split in zip(clients, splits, strict=True):
        assert client.state.data.everyone is everyone
        assert np.array_equal(everyone.x.numpy()[split.test], client.state.data.matched.x.numpy())


def test_domains_are_of_images_as_large_as_the_model_takes_them() -> None:
    larger = {"shape": [1, 28, 28], "resize": [28, 28], "mean": [0.25], "std": [0.5]}
    federation = replace(FEDERATION, input=larger, num_members=5)
    clients = make_clients(federation, data={"format": "digits"}, partition="domains", run_seed=3)
    train, _ = load_digits()
    splits = make_partition("domains", train.y, load_digits()[1].y, 5, get_partition_seed(3))
    for client, split in zip(clients, splits, strict=True):
        assert split.domain is not None
        fitted = fit(train.x[split.train], (1, 28, 28))
        shown = apply_domain(split.domain, fitted, split.train, seed=get_partition_seed(3), split="train")
        np.testing.assert_allclose(client.state.data.train.x.numpy(), (shown - 0.25) / 0.5, rtol=1e-6)
        everyone = client.state.data.everyone.x.numpy()
        assert np.array_equal(everyone[split.test], client.state.data.matched.x.numpy())


def test_a_node_sees_what_its_twin_in_the_simulation_sees(clients: list[Client]) -> None:
    initial = make_initial_aggregate(FEDERATION.model, INPUT["shape"], 10, 3)
    part = {"scheme": "domains", "of": 6, "seed": get_partition_seed(3)}
    assert parse_partition("domains").to_mapping().items() <= part.items()
    for index in (2, 3):  # noise, rotation
        data = {"format": "digits", "partition": {**part, "index": index}}
        node = make_client(FEDERATION, data=data, seed=0, initial=initial)
        for name in ("train", "matched", "everyone"):
            mine, its = getattr(node.state.data, name), getattr(clients[index].state.data, name)
            assert np.array_equal(mine.x.numpy(), its.x.numpy())
            assert np.array_equal(mine.y.numpy(), its.y.numpy())
