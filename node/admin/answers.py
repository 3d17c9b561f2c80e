"""The answers of a model as the admin RPC shows them: classes, labels and targets by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ml.payload import Array, Arrays
from ml.tasks import REGRESSION
from node.pb import admin_pb2 as pb

OWN = -1  # the author of a prototype of the node's own, which it has not sent
NameNearest = Callable[[pb.Prediction, int], None]  # called with the place of the author whose prototype is nearest


def describe_answers(
    answers: Arrays, classes: Sequence[str], task: str, top: int, name_nearest: NameNearest
) -> Iterator[pb.Prediction]:
    """Yields for each sample the `top` most probable classes or labels, the first of equal ones; or the values of a
    regression. `answers` are those of `ml.clients.inference`."""
    if task == REGRESSION:
        for values in answers["values"].tolist():
            named = zip(classes, values, strict=True)
            yield pb.Prediction(values=[pb.TargetValue(target=name, value=value) for name, value in named])
        return
    labels, probabilities = answers["labels"], answers["probabilities"]  # [N] or [N, C], [N, C]
    ranked = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    for i in range(len(labels)):
        said = pb.Prediction()
        if labels.ndim == 2:
            for label in np.flatnonzero(labels[i]).tolist():
                said.labels.add(**_name(classes, label, probabilities[i]))
        else:
            label = int(labels[i])
            said.label, said.class_name, said.probability = label, classes[label], float(probabilities[i, label])
        for other in ranked[i].tolist():
            said.top.add(**_name(classes, other, probabilities[i]))
        if "distances" in answers:
            said.distance = float(answers["distances"][i])
        if "authors" in answers and answers["authors"][i] != OWN:
            name_nearest(said, int(answers["authors"][i]))
        yield said


def _name(classes: Sequence[str], label: int, probabilities: Array) -> dict[str, int | str | float]:
    return {"label": label, "class_name": classes[label], "probability": float(probabilities[label])}
