"""The local phases of many clients as one: their weights stacked, and one vmapped pass for each step of all.

A method's loss is a function of (model, batch, context) alone, so torch.func can differentiate it for stacked weights.
It pays where a step is mostly launching kernels, on a GPU. The numbers are those of training one client after the
other, except for the rounding of batched products. A CPU, whose numbers are a node's bit for bit, therefore trains one
client after the other.

What differs between clients must be tensors of one shape. A batch that is smaller than others' is padded with samples
of no class if the loss ignores them. Clients whose batches or contexts have other shapes form groups of their own, and
a client alone in its group is trained as always. So is a client whose method has to see each step's gradients, or
trains more after the steps. Dropout's masks are drawn client by client (`ml.training.dropout`). The measures that end a
phase are made for a group at once, too (`ml.clients.batched_measures`).

Legend: N clients of a group, S steps, B samples of a step's largest batch, X those of all steps.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.clients.batched_measures import Measured, measure_together
from ml.clients.client import Client, Phase
from ml.methods.base import Blobs, Samples, Trained
from ml.models.base import dump_models
from ml.specs import Offer
from ml.specs.architectures import is_batchable
from ml.training.criterion import NO_CLASS, Criterion
from ml.training.dropout import Dropped, find_dropped, name_masks, use_masks
from ml.training.functional import PREFIX, make_function_of_weights
from ml.training.generator import States, get_states, given_back, going_on
from ml.training.graphs import on_device, own_stream
from ml.training.loop import MAX_GATHERED_BYTES, Batch, Progress, gather_batches, summarise_losses
from ml.training.optimizers import Sgd


def explain_unbatchable(clients: Sequence[Client]) -> str | None:
    """Returns the reason why these clients cannot share a pass with the same numbers as alone; None if they can."""
    for client in clients:
        model, engine = client.spec.task.model, client.engine
        if not is_batchable(model):
            return f"model {model['name']}: expected one without batch norm, and not a user's own"
        if engine.augment != "none":
            return f"augment: expected none, got {engine.augment}: changed images cannot be drawn for all at once"
        if engine.compiled:
            return "compile: expected false, got true: torch.compile and torch.func do not go together"
    return None


def train_batched(
    clients: Sequence[Client],
    height: int,
    beacon: bytes,
    *,
    ids: Sequence[bytes] | None = None,
    offers: Sequence[Offer] = (),
    blobs: Sequence[Blobs] | None = None,
) -> list[Trained]:
    """Does what `Client.train` does, for each of `clients`, which have one spec, one engine and one device, and for
    which `explain_unbatchable` returns None. `offers` are for all, `ids[i]` and `blobs[i]` for client i.

    What is frozen in a model must be the same in all. In `seconds` a client's steps count as its share of its group's,
    and what is measured together does not count. Raises as `Client.train`, and then none of the clients has changed.
    """
    own_height = clients[0].to_method_height(height)
    if own_height is None:
        return [client.train(height, beacon) for client in clients]
    height = own_height
    with given_back(clients[0].device), ExitStack() as undo:
        phases, states, models = [], list[States](), dump_models([client.state.model for client in clients])
        for i, client in enumerate(clients):
            undo.enter_context(client.undone_on_failure(models[i]))
            me, own = ids[i] if ids else b"", blobs[i] if blobs else None
            client.seed_torch(height)
            phases.append(client.begin(height, beacon, me=me, offers=offers, blobs=own))
            states.append(get_states(client.device))
        progress, measured = dict[int, Progress](), dict[int, Measured]()
        for group in _group(clients, phases):
            if len(group) == 1:
                (i,) = group
                with going_on(states, i, clients[i].device):
                    progress[i] = clients[i].run(phases[i])
            else:
                together, own_states = [clients[i] for i in group], [states[i] for i in group]
                made = run_together(together, [phases[i] for i in group], own_states)
                progress |= zip(group, made, strict=True)
                found = measure_together(together[0].method, [client.state for client in together])
                measured |= zip(group, found, strict=True)
        trained = []
        for i, client in enumerate(clients):
            with going_on(states, i, client.device):
                trained.append(client.end(phases[i], progress[i], measured.get(i)))
        return trained


def _group(clients: Sequence[Client], phases: Sequence[Phase]) -> Iterable[list[int]]:
    """Returns the positions of the phases whose tensors can be stacked, in order of first appearance."""
    groups: dict[Hashable, list[int]] = {}
    for i, (client, phase) in enumerate(zip(clients, phases, strict=True)):
        prepared = phase.prepared
        context, by_sample, by_step = prepared.context, prepared.by_sample, prepared.by_step
        key = (
            len(phase.schedule.batches) if _takes_padding(client, phase) else tuple(map(len, phase.schedule.batches)),
            tuple((name, context[name].shape, context[name].dtype) for name in sorted(context)),
            tuple((name, by_sample[name].shape[1:], by_sample[name].dtype) for name in sorted(by_sample)),
            None if by_step is None else by_step.layout,
            i if _trains_alone(phase) else None,
        )
        groups.setdefault(key, []).append(i)
    return groups.values()


def _trains_alone(phase: Phase) -> bool:
    has_own_steps = phase.prepared.then or phase.prepared.instead or phase.prepared.beside
    return bool(has_own_steps) or not phase.sgd.is_plain or phase.trains_alone


def _takes_padding(client: Client, phase: Phase) -> bool:
    criterion = client.state.model.criterion
    return (
        client.method.takes_padding
        and isinstance(criterion, Criterion)
        and criterion.takes_padding
        and phase.prepared.by_step is None
    )


def run_together(clients: Sequence[Client], phases: Sequence[Phase], states: list[States]) -> list[Progress]:
    """Does what `Client.run` does, for all clients, which draw from the generator `states`. Raises Diverged for the
    first that diverged, with no model changed."""
    first = clients[0]
    model, autocast, sgd = (
        first.state.model.train(),
        first.engine.autocast(first.device, first.state.model),
        phases[0].sgd,
    )
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]

    compute_loss = make_function_of_weights(model, use_masks(first.method.compute_loss), autocast)
    differentiate = torch.func.vmap(torch.func.grad_and_value(compute_loss))
    num_steps = len(phases[0].schedule.batches)
    start = time.perf_counter()
    with torch.no_grad(), own_stream(first.device):
        own = [parameter for client in clients for parameter in _get_trained(client, names)]
        stacked = [torch.stack(own[i :: len(names)]).requires_grad_() for i in range(len(names))]
        weights = {PREFIX + name: tensor for name, tensor in zip(names, stacked, strict=True)}
        context = _stack([phase.prepared.context for phase in phases])
        together = Sgd(stacked, sgd.lr, sgd.momentum, sgd.weight_decay, sgd.decay)

        def make_step(batch: Batch) -> Tensor:
            losses_N: Tensor
            gradients, losses_N = differentiate(weights, batch, context)
            together.update([gradients[name] for name in weights])
            return losses_N

        can_replay = first.engine.can_replay and together.is_steady
        step = on_device(make_step, first.device, num_steps, can_replay=can_replay)
        batches = _stack_batches(clients, phases)
        if first.spec.task.layout.has_dropout:
            batches = _add_masks(batches, clients, phases, states)
        losses = [step(batch) for batch in batches]
        losses_NS = torch.stack(losses, 1).cpu() if losses else torch.empty(len(clients), 0)
        summaries = [summarise_losses(losses_S.unbind(), sgd.lr) for losses_S in losses_NS]
        torch._foreach_copy_(own, [tensor[k] for k in range(len(clients)) for tensor in stacked])
    seconds = (time.perf_counter() - start) / len(clients)
    return [Progress(summary, len(losses), seconds) for summary in summaries]


def _get_trained(client: Client, names: Sequence[str]) -> Iterator[Tensor]:
    return (client.state.model.get_parameter(name).detach() for name in names)


def _stack_batches(clients: Sequence[Client], phases: Sequence[Phase]) -> Iterator[Batch]:
    """Yields the batches of each step, stacked: x_NBCHW, y_NB."""
    samples = [client.state.data.train for client in clients]
    num_bytes = sum(each.x.numel() * each.x.element_size() for each in samples)
    if phases[0].prepared.by_step is None and num_bytes <= MAX_GATHERED_BYTES:
        yield from _gather_together(samples, phases)
        return
    max_bytes = MAX_GATHERED_BYTES // len(clients)
    steps = (client.get_batches(phase, max_bytes) for client, phase in zip(clients, phases, strict=True))
    for batches in zip(*steps, strict=True):
        size = max(len(batch.x) for batch in batches)
        filled = [_fill_up(batch, size) for batch in batches]
        x, y = torch.stack([batch.x for batch in filled]), torch.stack([batch.y for batch in filled])
        yield Batch(x, y, _stack([batch.extra for batch in filled]))


def _add_masks(
    batches: Iterable[Batch], clients: Sequence[Client], phases: Sequence[Phase], states: list[States]
) -> Iterator[Batch]:
    """Yields the batches with the masks of dropout, for each client as it would draw them alone. The masks depend on
    the shapes that a loss sees: a client's own, without the samples that pad its batch."""
    known: dict[Hashable, list[Dropped]] = {}
    for step, batch in enumerate(batches):
        masks_N = []
        for i, (client, phase) in enumerate(zip(clients, phases, strict=True)):
            num, filled = len(phase.schedule.batches[step]), batch.x.shape[1]
            key = (num, *((name, rows.shape) for name, rows in batch.extra.items()))
            if key not in known:
                extra = {name: rows[i, :num] if num < filled else rows[i] for name, rows in batch.extra.items()}
                own = Batch(batch.x[i, :num], batch.y[i, :num], extra)
                model, engine = client.state.model, client.engine
                autocast = engine.autocast(client.device, model)
                known[key] = find_dropped(
                    model.train(), client.method.compute_loss, own, phase.prepared.context, autocast
                )
            with going_on(states, i, client.device):
                masks_N.append([dropped.draw() for dropped in known[key]])
        masks = [
            torch.stack([_add_rows(mask, max(map(len, own)) - len(mask), 1) for mask in own])
            for own in zip(*masks_N, strict=True)
        ]
        yield batch._replace(extra={**batch.extra, **name_masks(masks)})


def _fill_up(batch: Batch, size: int) -> Batch:
    """Pads the batch with samples of no class to `size`."""
    missing = size - len(batch.x)
    extra = {name: _add_rows(rows, missing) for name, rows in batch.extra.items()}
    return Batch(_add_rows(batch.x, missing), _add_rows(batch.y, missing, NO_CLASS), extra)


def _add_rows(rows: Tensor, num: int, value: int = 0) -> Tensor:
    return torch.cat([rows, rows.new_full((num, *rows.shape[1:]), value)]) if num else rows


def _gather_together(samples: Sequence[Samples], phases: Sequence[Phase]) -> Iterator[Batch]:
    """Yields the batches of each step as `_stack_batches` does, by one look-up for all clients instead of one for
    each."""
    if not phases[0].schedule.batches:
        return
    sizes_NS = np.array([list(map(len, phase.schedule.batches)) for phase in phases])
    sizes_S = sizes_NS.max(0)
    added = int((sizes_NS != sizes_S).any())  # one sample of no class, after all the others
    starts = list(accumulate(map(len, samples), initial=0))
    x = _add_rows(torch.cat([each.x for each in samples]), added)
    y = _add_rows(torch.cat([each.y for each in samples]), added, NO_CLASS)
    before = torch.from_numpy(np.repeat(starts[:-1], sizes_NS.sum(1))).to(x.device)
    rows = torch.cat([rows_B for phase in phases for rows_B in phase.schedule.batches]) + before
    rows_NX = _add_rows(rows, added, starts[-1])[_find_places(sizes_NS, sizes_S).to(x.device)]
    by_sample = {
        name: _add_rows(torch.cat([phase.prepared.by_sample[name] for phase in phases]), added)
        for name in phases[0].prepared.by_sample
    }
    batches = [rows_NB.reshape(-1) for rows_NB in torch.split(rows_NX, sizes_S.tolist(), 1)]
    for batch in gather_batches(x, y, by_sample, batches):
        x_NBCHW, y_NB, *extra = (
            rows.reshape(len(phases), len(rows) // len(phases), *rows.shape[1:])
            for rows in (batch.x, batch.y, *batch.extra.values())
        )
        yield Batch(x_NBCHW, y_NB, dict(zip(batch.extra, extra, strict=True)))


def _find_places(sizes_NS: NDArray[np.int64], sizes_S: NDArray[np.int64]) -> Tensor:
    """Returns, for each client and each of the sum of `sizes_S` places, the row of all clients' batches that stands
    there. In place of what a smaller batch lacks, it is the row after them all."""
    steps_X = np.repeat(np.arange(len(sizes_S)), sizes_S)
    within_X = np.arange(sizes_S.sum()) - np.repeat(sizes_S.cumsum() - sizes_S, sizes_S)
    begins_NS = (sizes_NS.cumsum() - sizes_NS.ravel()).reshape(sizes_NS.shape)
    places_NX = begins_NS[:, steps_X] + within_X
    return torch.from_numpy(np.where(within_X < sizes_NS[:, steps_X], places_NX, sizes_NS.sum()))


def _stack(tensors: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([named[name] for named in tensors]) for name in tensors[0]}
