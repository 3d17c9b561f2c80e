"""MP-FedCL's codebooks, its contrastive loss and its inference: the worked example (ALGORITHMS §12.3) and what may be
missing of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ml.aggregation import Contributed, pool
from ml.methods.common.codebooks import Codebooks, Pool, compute_contrastive_loss, find_nearest

torch.set_num_threads(1)

CPU = torch.device("cpu")
V = torch.tensor([[0.6, 0.8]])
PER_CODEBOOK = [0.055843912904, 2.382569990855, 0.003293077619, 0.003293077619]

Sent = list[tuple[int, list[float]]]  # (class, prototype)


def make_pool(*sent: Sent) -> Pool:
    """What the rule `pool` makes of what each client has sent."""
    contributions = [
        Contributed(
            bytes([i]) * 32,
            1,
            {
                "classes": np.array([c for c, _ in rows], np.int64),
                "prototypes": np.array([row for _, row in rows], np.float32),
            },
        )
        for i, rows in enumerate(sent)
    ]
    return Pool.from_arrays(pool(contributions, None))


EXAMPLE = make_pool(
    [(0, [1, 0]), (0, [0.8, 0.6]), (1, [0, 1]), (1, [0, 1])],
    [(0, [1, 0]), (0, [1, 0]), (1, [0.6, 0.8]), (1, [0.6, 0.8])],
)


def compute_loss(
    codebooks: Codebooks,
    v: Tensor = V,
    y: list[int] | None = None,
    *,
    tau: float = 0.07,
    num_classes: int = 2,
    reduction: str = "mean",
    is_letter: bool = False,
) -> float:
    context = codebooks.to_tensors(num_classes, tau, CPU)
    y_B = torch.tensor([1] if y is None else y)
    return compute_contrastive_loss(v, y_B, context, reduction, is_letter=is_letter).item()


def compute_plainly(codebooks: list[dict[int, list[float]]], v: list[float], y: int, tau: float) -> float:
    """Eq. (11') as it is written: the mean over the codebooks that have the class y, 0 where none has it."""
    terms = []
    for codebook in codebooks:
        if y in codebook:
            exponentials = {a: math.exp(float(np.dot(v, u)) / tau) for a, u in codebook.items()}
            terms.append(-math.log(exponentials[y] / sum(exponentials.values())))
    return sum(terms) / len(terms) if terms else 0.0


def read(codebooks: Codebooks) -> list[dict[int, list[float]]]:
    """Each codebook as its prototypes by class."""
    return [
        {int(c): codebooks.prototypes[h, s].tolist() for h, c in enumerate(codebooks.classes) if codebooks.has[h, s]}
        for s in range(len(codebooks.authors))
    ]


# ---- Eqs. (9) and (10)


def test_a_codebook_is_of_a_client_and_a_slot() -> None:
    codebooks = Codebooks.from_pool(EXAMPLE, 2)
    assert codebooks.authors.tolist() == [0, 0, 1, 1]
    assert codebooks.classes.tolist() == [0, 1]
    assert codebooks.has.all()
    assert read(codebooks) == [
        {0: [1, 0], 1: [0, 1]},
        {0: pytest.approx([0.8, 0.6]), 1: [0, 1]},
        {0: [1, 0], 1: pytest.approx([0.6, 0.8])},
        {0: [1, 0], 1: pytest.approx([0.6, 0.8])},
    ]


def test_a_class_of_too_few_prototypes_is_padded_in_all_slots_with_the_mean_of_its_pool() -> None:
    """Client 1 sent one of class 0, whose pool has [0,1], [0,1], [0.6,0.8], and none of class 4."""
    mixed = make_pool([(0, [0, 1]), (0, [0, 1]), (4, [1, 1]), (4, [3, 3])], [(0, [0.6, 0.8])])
    codebooks = Codebooks.from_pool(mixed, 2)
    mean = pytest.approx([0.2, 0.9333333], rel=1e-6)
    assert codebooks.classes.tolist() == [0, 4]
    assert read(codebooks) == [{0: [0, 1], 4: [1, 1]}, {0: [0, 1], 4: [3, 3]}, *[{0: mean, 4: [2, 2]}] * 2]


@pytest.mark.parametrize("padding", [True, False])
def test_a_pool_with_more_of_a_class_than_there_are_slots_keeps_them_all(padding: bool) -> None:
    """As it is in the first round of a run that goes on with fewer prototypes than the run before."""
    pool = make_pool([(0, [1]), (0, [3]), (0, [5])], [(0, [2])])
    codebooks = Codebooks.from_pool(pool, 2, padding=padding)
    own = [codebooks.prototypes[0, s, 0] for s in range(len(codebooks.authors)) if codebooks.authors[s] == 0]
    assert own == [1, 3, 5]


def test_without_a_number_of_slots_there_are_as_many_as_somebody_has_of_a_class() -> None:
    uneven = make_pool([(0, [1]), (1, [2]), (1, [4]), (1, [6])], [(0, [3]), (0, [5])])
    assert (
        read(Codebooks.from_pool(uneven))
        == [{0: [3], 1: [2]}, {0: [3], 1: [4]}, {0: [3], 1: [6]}] + [{0: [3], 1: [4]}] * 3
    )


def test_without_padding_nothing_stands_in_for_what_was_not_sent() -> None:
    """Client 1 has no second prototype of anything: that codebook is dropped."""
    mixed = make_pool([(0, [1]), (0, [2]), (1, [3])], [(1, [4])], [(0, [5]), (2, [6]), (2, [7])])
    codebooks = Codebooks.from_pool(mixed, 2, padding=False)
    assert read(codebooks) == [{0: [1], 1: [3]}, {0: [2]}, {1: [4]}, {0: [5], 2: [6]}, {2: [7]}]
    assert codebooks.authors.tolist() == [0, 0, 1, 2, 2]


def test_padding_changes_nothing_where_nothing_is_missing() -> None:
    padded, plain = Codebooks.from_pool(EXAMPLE, 2), Codebooks.from_pool(EXAMPLE, 2, padding=False)
    assert np.array_equal(padded.prototypes, plain.prototypes)
    assert compute_loss(padded) == compute_loss(plain)


# ---- Eq. (11')


def test_the_worked_example_codebook_by_codebook() -> None:
    codebooks = Codebooks.from_pool(EXAMPLE, 2)
    for s, expected in enumerate(PER_CODEBOOK):
        one = Codebooks(codebooks.classes, codebooks.prototypes[:, [s]], codebooks.authors[[s]], codebooks.has[:, [s]])
        assert compute_loss(one) == pytest.approx(expected, rel=1e-6, abs=5e-8)


def test_the_worked_example_in_the_mean_over_codebooks() -> None:
    codebooks = Codebooks.from_pool(EXAMPLE, 2)
    assert compute_loss(codebooks) == pytest.approx(0.611250014749, rel=1e-6)
    assert compute_loss(codebooks, tau=0.5) == pytest.approx(0.530277380369, rel=1e-6)


def test_the_loss_draws_a_sample_to_its_own_class() -> None:
    """The literal reading of Eq. (11), which takes the other classes for positives, gives 3.611250014749."""
    context = Codebooks.from_pool(EXAMPLE, 2).to_tensors(2, 0.07, CPU)
    v_BD = V.clone().requires_grad_()
    compute_contrastive_loss(v_BD, torch.tensor([1]), context).backward()  # type: ignore[no-untyped-call]
    assert v_BD.grad is not None
    assert v_BD.grad[0, 1] < 0 < v_BD.grad[0, 0]  # a step down goes towards [0,1] and [0.6,0.8]


def test_to_the_letter_the_other_classes_are_the_positives() -> None:
    pool_ = make_pool([(0, [1, 0]), (1, [0, 1]), (2, [-1, 0])], [(0, [0.8, 0.6]), (1, [0.6, 0.8]), (2, [0, -1])])
    codebooks, v, tau = Codebooks.from_pool(pool_, 1), [0.6, 0.8], 0.5
    for y in (0, 1, 2):
        terms = []
        for codebook in read(codebooks):
            exponentials = {a: math.exp(float(np.dot(v, u)) / tau) for a, u in codebook.items()}
            others = [math.log(value / sum(exponentials.values())) for a, value in exponentials.items() if a != y]
            terms.append(-sum(others) / len(others))
        given = compute_loss(codebooks, torch.tensor([v]), [y], tau=tau, num_classes=4, is_letter=True)
        assert given == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    assert compute_loss(codebooks, torch.tensor([v]), [3], tau=tau, num_classes=4, is_letter=True) == 0
    alone = Codebooks.from_pool(make_pool([(1, [0, 1])]), 1)
    assert compute_loss(alone, torch.tensor([v]), [1], tau=tau, is_letter=True) == 0


def test_a_batch_counts_in_the_mean_or_in_the_sum() -> None:
    codebooks, v_BD, y = Codebooks.from_pool(EXAMPLE, 2), torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]]), [1, 0, 0]
    alone = [compute_loss(codebooks, v_BD[i : i + 1], y[i : i + 1]) for i in range(3)]
    assert compute_loss(codebooks, v_BD, y) == pytest.approx(sum(alone) / 3, rel=1e-6)
    assert compute_loss(codebooks, v_BD, y, reduction="sum") == pytest.approx(sum(alone), rel=1e-6)


@pytest.mark.parametrize("padding", [True, False])
def test_a_class_that_nobody_holds_is_in_no_denominator_and_its_samples_add_nothing(padding: bool) -> None:
    """As classes 0 and 1 of two, classes 2 and 5 of seven."""
    elsewhere = Pool(np.array([2, 5])[EXAMPLE.classes], EXAMPLE.prototypes, EXAMPLE.authors)
    codebooks = Codebooks.from_pool(elsewhere, 2, padding=padding)
    assert compute_loss(codebooks, y=[5], num_classes=7) == pytest.approx(0.611250014749, rel=1e-6)
    assert compute_loss(codebooks, y=[4], num_classes=7) == 0
    both = compute_loss(codebooks, V.repeat(2, 1), [5, 6], num_classes=7)
    assert both == pytest.approx(0.611250014749 / 2, rel=1e-6)


MIXED = make_pool(
    [(0, [1, 0]), (0, [0.8, 0.6]), (1, [0, 1])],
    [(1, [0.6, 0.8]), (2, [0.5, 0.5]), (2, [0.1, 0.9])],
    [(0, [0.9, 0.1])],
)


@pytest.mark.parametrize("padding", [True, False])
def test_what_is_missing_leaves_the_mean_over_the_codebooks_that_have_the_class(padding: bool) -> None:
    codebooks = Codebooks.from_pool(MIXED, 2, padding=padding)
    v, y = [[0.6, 0.8], [1.0, 0.0], [0.3, 0.3], [0.2, 0.9]], [1, 0, 2, 3]
    expected = [compute_plainly(read(codebooks), row, label, 0.2) for row, label in zip(v, y, strict=True)]
    assert expected[3] == 0 < min(expected[:3])
    found = compute_loss(codebooks, torch.tensor(v), y, tau=0.2, num_classes=4)
    assert found == pytest.approx(sum(expected) / 4, rel=1e-5)
    total = compute_loss(codebooks, torch.tensor(v), y, tau=0.2, num_classes=4, reduction="sum")
    assert total == pytest.approx(sum(expected), rel=1e-5)


@pytest.mark.parametrize("padding", [True, False])
def test_gradients_are_numbers_whatever_is_missing(padding: bool) -> None:
    context = Codebooks.from_pool(MIXED, 2, padding=padding).to_tensors(4, 0.07, CPU)
    v_BD = torch.rand(8, 2, requires_grad=True)
    compute_contrastive_loss(v_BD, torch.arange(8) % 4, context).backward()  # type: ignore[no-untyped-call]
    assert v_BD.grad is not None
    assert torch.isfinite(v_BD.grad).all()
    assert v_BD.grad[[3, 7]].eq(0).all()


@pytest.mark.parametrize("padding", [True, False])
def test_autocast_rounds_nothing(padding: bool) -> None:
    context = Codebooks.from_pool(MIXED, 2, padding=padding).to_tensors(4, 0.07, CPU)
    v_BD, y_B = F.normalize(torch.rand(16, 2), dim=1), torch.arange(16) % 4
    with torch.autocast("cpu", torch.bfloat16):
        rounded = compute_contrastive_loss(v_BD, y_B, context)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, compute_contrastive_loss(v_BD, y_B, context))


@pytest.mark.parametrize("padding", [True, False])
def test_many_clients_can_be_computed_at_once(padding: bool) -> None:
    context = Codebooks.from_pool(MIXED, 2, padding=padding).to_tensors(4, 0.07, CPU)
    v_NBD, y_NB = F.normalize(torch.rand(3, 8, 2), dim=2), torch.randint(4, (3, 8))
    contexts = {name: torch.stack([tensor] * 3) for name, tensor in context.items()}
    together = torch.func.vmap(compute_contrastive_loss)(v_NBD, y_NB, contexts)
    for i in range(3):
        assert together[i].item() == pytest.approx(compute_contrastive_loss(v_NBD[i], y_NB[i], context).item())


# ---- Eq. (13)

POOL = make_pool([(0, [1, 0]), (1, [0, 1])], [(0, [0.8, 0.6]), (1, [0.6, 0.8])])


def ask(query: list[float], rows: Pool = POOL) -> tuple[Any, ...]:
    """Label, distance and author."""
    label, distance, author = find_nearest(torch.tensor([query]), rows)
    return int(label), distance.item(), int(author)


def test_the_nearest_prototype_of_all_answers_and_says_whose_it_is() -> None:
    assert ask([0.9, 0.5]) == (0, pytest.approx(0.1414214, rel=1e-5), 1)
    assert ask([1.0, 0.1]) == (0, pytest.approx(0.1, rel=1e-5), 0)
    assert ask([0.0, 0.9]) == (1, pytest.approx(0.1, rel=1e-5), 0)


def test_between_equally_near_prototypes_the_lowest_class_wins() -> None:
    assert ask([0.7, 0.7]) == (0, pytest.approx(0.1414214, rel=1e-5), 1)
    other_way_round = Pool(1 - POOL.classes[::-1], POOL.prototypes[::-1].copy(), POOL.authors[::-1].copy())
    assert ask([0.7, 0.7], other_way_round)[0] == 0


def test_nearest_is_nearest_however_far_from_zero_and_however_many() -> None:
    """A distance taken from a product of matrices would lose what these prototypes differ by."""
    rows = (1e4 + 0.1 * np.arange(64, dtype=np.float32))[:, None].repeat(8, 1)
    labels, distances, authors = find_nearest(torch.from_numpy(rows), Pool(np.arange(64), rows, np.zeros(64, np.int64)))
    assert labels.tolist() == list(range(64))
    assert distances.eq(0).all()
    assert (labels.dtype, distances.dtype, authors.dtype) == (torch.int64, torch.float32, torch.int64)


def test_a_padded_pool_has_the_means_that_stand_in_and_not_what_they_stand_in_for() -> None:
    mixed = make_pool([(0, [0, 1]), (0, [0, 1])], [(0, [0.6, 0.8]), (1, [5, 5]), (1, [6, 6])])
    padded = Codebooks.from_pool(mixed, 2).to_pool()
    mean = pytest.approx([0.2, 0.9333333], rel=1e-6)
    rows: list[Any] = list(
        zip(padded.classes.tolist(), padded.prototypes.tolist(), padded.authors.tolist(), strict=True)
    )
    assert rows == [
        (0, [0, 1], 0),
        (0, [0, 1], 0),
        (0, mean, 1),
        (0, mean, 1),
        *[(1, [5.5, 5.5], 0)] * 2,
        (1, [5, 5], 1),
        (1, [6, 6], 1),
    ]
    assert ask([5.4, 5.5], padded) == (1, pytest.approx(0.1, rel=1e-4), 0)
    assert ask([5.4, 5.5], mixed) == (1, pytest.approx(math.hypot(0.4, 0.5), rel=1e-5), 1)


def test_an_unpadded_pool_has_what_was_sent() -> None:
    plain = Codebooks.from_pool(MIXED, 2, padding=False).to_pool()
    for one, other in zip(plain.to_arrays().values(), MIXED.to_arrays().values(), strict=True):
        assert np.array_equal(one, other)
