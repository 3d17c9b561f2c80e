"""Attacks: each formula by hand, what a lie leaves alone, and which members can lie so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ml.attacks import ATTACKS, make_attack, read_attack
from ml.attacks.base import Scene
from ml.attacks.collusion import compute_z_max
from ml.errors import PayloadError, SpecError
from ml.payload import Array, Arrays, compute_chunk_digests
from ml.seeding import numpy_rng
from ml.specs import METHODS, MethodSpec, get_spec
from ml.specs.methods.dispfl import pack_mask
from ml.specs.methods.mpfedcl import MAX_LENGTH
from support.data.contributions import prototypes
from support.data.normed import fit_model

NUM_CLASSES = 4


def make_spec(name: str = "fedavg", **settings: Any) -> MethodSpec:
    model = fit_model(name, {"name": "mlp", "hidden": [3, 2]}, NUM_CLASSES)
    return get_spec({"name": name, **settings}, model, NUM_CLASSES, (1, 4, 4), rounds=5, num_members=4)


def f32(values: Any) -> Array:
    return np.array(values, np.float32)


def make_scene(
    truly: Mapping[str, Arrays],
    honest: Sequence[Mapping[str, Arrays]] = (),
    *,
    spec: MethodSpec | None = None,
    start: Arrays | None = None,
    common: Arrays | None = None,
    num_members: int = 4,
) -> Scene:
    rng = numpy_rng("attacks")
    return Scene(spec or make_spec(), 1, truly, honest, start or {}, common, num_members, rng)


def lie(attack: str, scene: Scene, **settings: Any) -> Mapping[str, Arrays]:
    told = read_attack({"name": attack, **settings}).lie(scene)
    assert told is not None
    return told


def bend(attack: str, x: Sequence[float], start: Sequence[float], *honest: Sequence[float], **settings: Any) -> Any:
    """What becomes of one array of a model: the common one is `start`."""
    scene = make_scene(
        {"model": {"w": f32(x)}}, [{"model": {"w": f32(y)}} for y in honest], common={"model/w": f32(start)}
    )
    return lie(attack, scene, **settings)["model"]["w"].tolist()


# ---- by hand


@pytest.mark.parametrize(
    ("attack", "settings", "told"),
    [
        ("sign_flip", {}, [0, 5]),  # the way from (1, 4) to (2, 3) is (1, -1)
        ("sign_flip", {"scale": 3.0}, [-2, 7]),
        ("scaled_update", {}, [11, -6]),
        ("scaled_update", {"scale": 2.0}, [3, 2]),
        ("huge", {}, [1e5, 1e5]),
        ("huge", {"value": -7.0}, [-7, -7]),
        ("inner_product", {}, [0, 4.5]),  # the honest go (2, -1) on the mean
        ("inner_product", {"epsilon": 2.0}, [-3, 6]),
        ("little", {}, [3 + 2, 3 + 0]),  # the honest are (1, 3) and (5, 3): mean (3, 3), deviation (2, 0)
        ("little", {"z": -0.5}, [3 - 1, 3 - 0]),
    ],
)
def test_a_model_becomes_what_the_formula_says(attack: str, settings: dict[str, float], told: list[float]) -> None:
    assert bend(attack, [2, 3], [1, 4], [1, 3], [5, 3], **settings) == told


def test_noise_is_around_where_the_phase_set_out_from() -> None:
    drawn = f32(bend("noise", [0.0] * 10_000, [100.0] * 10_000, sigma=2.0))
    assert abs(drawn.mean() - 100) < 0.1
    assert abs(drawn.std() - 2) < 0.1


@pytest.mark.parametrize(
    ("attack", "settings", "told"),
    [
        ("sign_flip", {}, {0: [-1, -2], 2: [-3, 0]}),
        ("scaled_update", {}, {0: [10, 20], 2: [30, 0]}),
        ("shifted_prototypes", {}, {0: [11, 12], 2: [13, 10]}),
        ("shifted_prototypes", {"shift": -1.0}, {0: [0, 1], 2: [2, -1]}),
        ("inner_product", {}, {0: [-2, -3], 2: [-1.5, 0]}),  # of class 2 nobody else has any: the liar's own counts
        ("little", {}, {0: [4 + 2, 6 + 0], 2: [3, 0]}),
        ("mislabelled_prototypes", {}, {1: [3, 0], 3: [1, 2]}),
    ],
)
def test_prototypes_become_what_the_formula_says(
    attack: str, settings: dict[str, float], told: dict[int, list[float]]
) -> None:
    honest = [{"prototypes": prototypes({0: [2, 6], 1: [9, 9]})}, {"prototypes": prototypes({0: [6, 6], 3: [8, 8]})}]
    scene = make_scene({"prototypes": prototypes({0: [1, 2], 2: [3, 0]})}, honest, spec=make_spec("dfpl"))
    found = lie(attack, scene, **settings)["prototypes"]
    assert dict(zip(found["classes"].tolist(), found["prototypes"].tolist(), strict=True)) == told
    assert found["classes"].tolist() == sorted(told)


@pytest.mark.parametrize(
    ("num_members", "num_liars", "z_max"),
    [
        (50, 24, 1.4261),  # 2 of the 26 honest farther: Phi(z) = 24/26, the paper's own example
        (10, 3, 0.1800),  # 3 of the 7 honest farther: Phi(z) = 4/7
        (4, 1, -0.4307),
        (2, 1, -math.inf),
    ],
)
def test_z_max_leaves_as_many_farther_as_make_a_majority(num_members: int, num_liars: int, z_max: float) -> None:
    assert compute_z_max(num_members, num_liars) == pytest.approx(z_max, abs=1e-4)


def test_labels_are_read_backwards() -> None:
    told = read_attack({"name": "label_flip"}).change_labels(np.array([0, 1, 3, 3]), NUM_CLASSES)
    assert told.tolist() == [3, 2, 0, 0]
    kept = read_attack({"name": "sign_flip"}).change_labels(np.array([0, 1, 3, 3]), NUM_CLASSES)
    assert kept.tolist() == [0, 1, 3, 3]


def test_the_silent_say_nothing() -> None:
    assert read_attack({"name": "silent"}).lie(make_scene({"model": {"w": f32([1])}})) is None


# ---- sets


def make_set(dtype: str = "float32") -> dict[str, Arrays]:
    rng = numpy_rng("set")
    x = rng.integers(0, 256, (50, 1, 4, 4)).astype(dtype)
    arrays = {"x": x, "y": np.tile(f32([0.7, 0.2, 0.1, 0]), (50, 1))}
    return {"encrypted_set": arrays, "chunk_digests": {"digests": compute_chunk_digests(arrays)}}


def test_a_poisoned_set_has_its_soft_labels_backwards_and_digests_that_are_true() -> None:
    truly = make_set()
    told = lie("poisoned_set", make_scene(truly, spec=make_spec("fededs")))
    assert told["encrypted_set"]["y"][0].tolist() == f32([0, 0.1, 0.2, 0.7]).tolist()
    assert np.array_equal(told["encrypted_set"]["x"], truly["encrypted_set"]["x"])
    assert np.array_equal(told["chunk_digests"]["digests"], compute_chunk_digests(told["encrypted_set"]))
    assert not np.array_equal(told["chunk_digests"]["digests"], truly["chunk_digests"]["digests"])


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_set_of_noise_has_the_mean_and_the_range_of_images(dtype: str) -> None:
    truly = make_set(dtype)
    told = lie("poisoned_set", make_scene(truly, spec=make_spec("fededs")), what="noise")["encrypted_set"]
    assert told["x"].dtype == dtype
    assert not np.array_equal(told["x"], truly["encrypted_set"]["x"])
    assert abs(told["x"].mean() - truly["encrypted_set"]["x"].mean()) < 10
    assert np.array_equal(told["y"], truly["encrypted_set"]["y"])


def test_whoever_poisons_sets_sends_true_models() -> None:
    truly = {"model": {"w": f32([1, 2])}}
    assert lie("poisoned_set", make_scene(truly, spec=make_spec("fededs"))) == truly


# ---- what is left alone, and kept to


def test_running_statistics_and_whole_numbers_stay_true() -> None:
    truly = {"model": {"w": f32([1]), "bn.running_mean": f32([2]), "local_steps": np.array([9])}}
    told = lie("huge", make_scene(truly, start={"w": f32([0]), "bn.running_mean": f32([0])}))["model"]
    assert (told["w"].tolist(), told["bn.running_mean"].tolist(), told["local_steps"].tolist()) == ([1e5], [2], [9])


def test_without_a_common_model_the_way_begins_at_the_liars_own() -> None:
    truly = {"g": {"w": f32([2])}, "h": {"v": f32([5])}}
    start = {"w": f32([1]), "v": f32([5])}
    told = lie("sign_flip", make_scene(truly, spec=make_spec("fedper"), start=start))
    assert (told["g"]["w"].tolist(), told["h"]["v"].tolist()) == ([0], [5])


def test_of_a_masked_array_the_way_begins_at_the_same_entries() -> None:
    kept = np.array([[True, False], [False, True]])
    truly = {"model": {"w": f32([3, 8]), "mask/w": pack_mask(kept)}}
    scene = make_scene(truly, spec=make_spec("dispfl"), start={"w": f32([[1, 50], [60, 7]])})
    told = lie("sign_flip", scene)["model"]
    assert told["w"].tolist() == [-1, 6]
    assert np.array_equal(told["mask/w"], truly["model"]["mask/w"])


def test_rows_of_a_pool_are_cut_to_the_length_that_validators_take() -> None:
    spec = make_spec("mpfedcl")
    rows = {"classes": np.array([0, 0, 2]), "prototypes": f32([[0.6, 0.8], [1, 0], [0.1, 0]])}
    told = lie("scaled_update", make_scene({"prototypes": rows}, spec=spec))["prototypes"]
    assert told["prototypes"] == pytest.approx(f32([[0.6, 0.8], [1, 0], [1, 0]]))
    spec.validate_payload("prototypes", told, 1)
    far = {**rows, "prototypes": rows["prototypes"] * (1.1 * MAX_LENGTH)}
    with pytest.raises(PayloadError, match="expected rows of length"):
        spec.validate_payload("prototypes", far, 1)


def test_colluding_liars_of_uapdfl_look_like_the_middle_of_the_honest() -> None:
    units: list[dict[str, Arrays]] = [{"unit": {"unit": f32(row)}} for row in ([0, 0, 0, 1], [1, 0, 0, 0])]
    scene = make_scene({"unit": {"unit": f32([0, 1, 0, 0])}}, units, spec=make_spec("uapdfl"))
    assert lie("little", scene)["unit"]["unit"].tolist() == [0.5, 0, 0, 0.5]
    assert lie("sign_flip", scene)["unit"]["unit"].tolist() == [0, 1, 0, 0]


def test_numbers_too_large_for_a_float_are_infinite_and_no_warning() -> None:
    assert bend("scaled_update", [1e30], [0], scale=1e30) == [math.inf]


# ---- claims


def test_a_claimed_weight_stands_in_class_sizes_where_means_go_by_them() -> None:
    spec = make_spec("dfpl", proto_agg="samples")
    truly = {"prototypes": prototypes({0: [1, 2], 2: [3, 0]}, {0: 4, 2: 5})}
    attack = make_attack({"name": "sign_flip", "weight": 77}, spec, 4)
    told = attack.claim(make_scene(truly, spec=spec), truly)["prototypes"]
    assert told["counts"].tolist() == [77, 77]
    assert truly["prototypes"]["counts"].tolist() == [4, 5]


def test_claimed_steps_come_with_the_norm_that_belongs_to_them() -> None:
    spec = make_spec("fednova", local_epochs=1, momentum=0.5)
    truly = {"model": {"w": f32([1]), **spec.make_numbers(4)}}  # type: ignore[attr-defined]
    told = make_attack({"name": "sign_flip", "steps": 2}, spec, 4).claim(make_scene(truly, spec=spec), truly)["model"]
    assert (told["local_steps"].tolist(), told["norm"].tolist()) == ([2], [2.5])


# ---- what makes no sense


@pytest.mark.parametrize(
    ("method", "attack", "message"),
    [
        ("fedavg", {"name": "sign_flop"}, "attack.name: unknown attack 'sign_flop': did you mean 'sign_flip'"),
        ("fedavg", {"name": 3}, "attack.name: unknown attack 3: expected one of label_flip, sign_flip,"),
        ("fedavg", {}, "attack.name: unknown attack None"),
        ("fedavg", {"name": "noise", "liars": 4}, "attack.liars: expected fewer than the 4 clients, got 4"),
        ("fedavg", {"name": "noise", "liars": 0}, "attack.liars: expected a whole number from 1 to 2147483647, got 0"),
        ("fedavg", {"name": "noise", "sigma": 0}, r"attack.sigma: expected a number in \(0, inf\), got 0"),
        ("fedavg", {"name": "noise", "sigmo": 1}, "attack.sigmo: unknown key: did you mean 'sigma'"),
        ("fedavg", {"name": "huge", "value": math.inf}, r"attack.value: expected a number in \(-inf, inf\), got inf"),
        ("fededs", {"name": "poisoned_set", "what": "x"}, "attack.what: expected one of labels, noise, got 'x'"),
        ("fedavg", {"name": "shifted_prototypes"}, "attack.name: shifted_prototypes changes nothing that members of"),
        ("dfpl", {"name": "poisoned_set"}, "attack.name: poisoned_set changes nothing that members of dfpl send"),
        ("dispfl", {"name": "little"}, "attack.name: little changes nothing that members of dispfl send"),
        ("local", {"name": "label_flip"}, "attack.name: expected none, for members of local send nothing"),
        ("dfpl", {"name": "noise", "weight": 9}, "attack.weight: expected none, since dfpl signs 1 for all; got 9"),
        ("fedavg", {"name": "noise", "weight": 1 << 30}, "attack.weight: expected 536870911 at most, got 1073741824"),
        ("fedavg", {"name": "noise", "steps": 9}, "attack.steps: expected none: steps are claimed in fednova alone"),
    ],
)
def test_an_attack_that_makes_no_sense_is_named(method: str, attack: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        make_attack(attack, make_spec(method), 4)


def test_every_method_that_sends_something_can_be_attacked() -> None:
    for name in METHODS:
        spec = make_spec(name, **({"local_epochs": 1} if name == "fednova" else {}))
        fit = {attack for attack, kind in ATTACKS.items() if kind().applies_to(spec)}
        assert fit >= {"label_flip", "silent"} if name != "local" else not fit
        assert ("poisoned_set" in fit) is (name == "fededs")
        assert ("mislabelled_prototypes" in fit) is ("prototypes" in spec.schemas(1))


def test_settings_are_written_out_with_their_defaults_and_read_back() -> None:
    for name, attack in ATTACKS.items():
        mapping = attack().to_mapping()
        assert mapping["name"] == name
        assert mapping["liars"] == 1
        assert read_attack(mapping) == attack()
