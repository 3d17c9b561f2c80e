"""MP-FedCL: several prototypes of each class beside the model, pooled over all clients (ALGORITHMS §3).

Qiao et al., *MP-FedCL: Multiprototype Federated Contrastive Learning for Edge Intelligence*. Each client sends FedAvg's
model and up to K k-means centroids of the embeddings of each class it owns; the pool of a class is the union of what
its owners sent, Eq. (8). The same with class means is SP-FedCL, with DBSCAN's clusters DP-FedCL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from ml.errors import PayloadError, SpecError
from ml.payload import Arrays, ArraySchema, ArraySpec
from ml.specs.architectures import has_unit_embedding
from ml.specs.base import RoundKinds
from ml.specs.hyperparameters import Hyperparameters, choice, count, flag, number, option, switch
from ml.specs.sharing import ModelHyperparameters, ModelSpec
from ml.specs.task import Task
from ml.tasks import CLASSIFICATION

MAX_LENGTH = 1.01  # of a prototype: centroids of unit vectors are no longer than 1, but for rounding


@dataclass(frozen=True, kw_only=True)
class MpFedClHyperparameters(ModelHyperparameters):
    """Settings of MP-FedCL. `num_prototypes` is K, `weight` that of the contrastive loss L_R in Eq. (12), `tau` its
    temperature.

    `cluster` makes a class's prototypes: k-means (K at most), its mean (one), or DBSCAN (`eps`, `min_samples`; of more
    than `max_clusters` the largest). `embed` is what is clustered, the embedding or the layer before it, of unit length
    with `normalize`. `padding` adds a class's mean to the codebooks of those who sent fewer than K of it, Eq. (10);
    `pool_in_inference` says whether a prediction uses those means too. `eval_model` predicts by the averaged model or
    the client's own; `reduction` takes L_R's mean over the batch or its sum. `positives` of Eq. (11) are the sample's
    own class, or to the letter all others, which drives a sample away from its own. Of classes with fewer than
    `min_class_samples` samples nothing is sent: of a class with no more than K, a client would send each sample's own
    embedding.

    `reembed` makes the pool by the averaged model, which predicts, and not by the clients' own before it was averaged.
    Then a round clusters the embeddings that the model at its beginning computes for a client's samples. The pool is
    one round behind, and the last round of a run brings it level: it exchanges prototypes, and nobody trains in it.
    With `own_samples` the embeddings of so many of a client's own training samples answer beside the pool, and never
    leave it. `prior` is the kappa of its answers: how far they depend on the shares of each class among its own samples
    (`ml.training.prior`), unless a prediction asks for another.

    The paper's own values are lr 0.01, momentum 0.5, decay 0.95, one epoch of batches of 32, tau 0.07, and K = 2 for
    MNIST, 4 for Digit-5 and Office-10, 3 for DomainNet; where they are not written out, the defaults are those of all
    methods.
    """

    num_prototypes: int = count(2)
    weight: float = number(1.0, "[0, inf)")
    tau: float = number(0.07, "(0, inf)")
    cluster: str = choice("kmeans", "mean", "dbscan")
    eps: float = number(0.5, "(0, inf)")
    min_samples: int = count(5)
    max_clusters: int = count(16)
    normalize: bool = flag(True)
    embed: str = choice("head_hidden", "encoder")
    padding: bool = flag(True)
    pool_in_inference: str = choice("centroids", "padded")
    eval_model: str = choice("global", "local")
    reduction: str = choice("mean", "sum")
    positives: str | None = option("own", "letter")
    min_class_samples: int = count(1)
    reembed: bool | None = switch()
    own_samples: int | None = count(None)
    prior: float | None = number(None, "[0, 1]")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positives == "letter" and not self.padding:
            raise SpecError("method.positives", "expected own without padding: a codebook may lack all other classes")
        if self.reembed and self.eval_model == "local":
            raise SpecError("method.reembed", "expected false with eval_model local: the pool is of the averaged model")
        if self.own_samples is not None and self.eval_model == "local":
            raise SpecError("method.own_samples", "expected none with eval_model local: they are of the averaged model")

    @property
    def max_prototypes(self) -> int:
        """The most prototypes of a class that a client may send."""
        return {"kmeans": self.num_prototypes, "mean": 1, "dbscan": self.max_clusters}[self.cluster]


@dataclass(frozen=True)
class MpFedClSpec(ModelSpec):
    """MP-FedCL's spec, with two voted kinds: `model` as FedAvg's, and `prototypes`: `classes` int64[n] ascending, with
    repeats, and `prototypes` float32[n, D]. The aggregate of the latter has all rows of all clients, and `authors`
    int64[n] besides.

    With `reembed` the first round has no prototypes, and the last one carries nothing else: its aggregate keeps the
    model before it.

    With `normalize` no row is longer than `MAX_LENGTH`: all train against all rows, and gradients grow with them, so
    that one liar's rows could leave nobody a finite model. Without it nothing bounds them. With a robust `aggregation`
    the pool leaves out the members whose rows of a class are farthest from the others'. Masked sums hide the model
    alone: the rows of the pool stay separate and are not summed.
    """

    name: ClassVar[str] = "mpfedcl"
    hides_samples: ClassVar[bool] = True
    shown: ClassVar[Mapping[str, str]] = {
        "prototypes": "they tell which classes a member holds, and how its own model embeds its samples"
    }
    tasks: ClassVar[tuple[str, ...]] = (CLASSIFICATION,)  # prototypes need classes
    settings: ClassVar[type[Hyperparameters]] = MpFedClHyperparameters

    hyperparameters: MpFedClHyperparameters

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], task: Task) -> Self:
        spec = super().from_mapping(method, task)
        hyper = spec.hyperparameters
        if hyper.embed == "encoder" and not task.layout.features and len(task.layer_dims) < 2:
            raise SpecError(
                "method.embed", f"expected head_hidden, for {task.model['name']} has no layer before it, got 'encoder'"
            )
        if not hyper.normalize and spec.model_normalizes:
            raise SpecError(
                "method.normalize",
                f"expected true, or model.normalize false too: {task.model['name']} normalises its embedding itself; "
                "got false",
            )
        return spec

    def explain_not_private(self) -> str | None:
        if (cluster := self.hyperparameters.cluster) != "mean":
            return f"with cluster {cluster} a sample may change which clusters there are; mean is one prototype a class"
        return super().explain_not_private()

    def explain_not_masked(self) -> str | None:
        if self.hyperparameters.reembed:
            return "with reembed the last round of a run exchanges prototypes alone, and there is no sum in it"
        return super().explain_not_masked()

    @property
    def model_normalizes(self) -> bool:
        """Says whether the model itself computes what is clustered at unit length."""
        return self.hyperparameters.embed == "head_hidden" and has_unit_embedding(self.task.model)

    @property
    def prototype_dim(self) -> int:
        """D, the length of a prototype."""
        if self.hyperparameters.embed == "head_hidden":
            return self.task.embedding_dim
        return self.task.layout.features or self.task.layer_dims[-2]

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        arrays = {
            "classes": ArraySpec("int64", ("n",), (0, self.task.num_classes - 1)),
            "prototypes": ArraySpec("float32", ("n", self.prototype_dim)),
        }
        most = self.task.num_classes * self.hyperparameters.max_prototypes
        return {"model": self._make_schema(), "prototypes": ArraySchema(arrays, {"n": (0, most)})}

    @property
    def closing_height(self) -> int | None:
        return self.task.rounds if self.hyperparameters.reembed and self.task.rounds > 1 else None

    def is_closing(self, height: int) -> bool:
        """Says whether this height exchanges nothing but prototypes of the averaged model."""
        return height == self.closing_height

    @property
    def closing(self) -> RoundKinds | None:
        if not self.hyperparameters.reembed:
            return None
        return RoundKinds({"prototypes": self._schemas["prototypes"]}, self._pool_rule)

    @cached_property
    def _pool_rule(self) -> Mapping[str, str]:
        return {"prototypes": "trimmed_pool" if self.hyperparameters.is_robust else "pool"}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return {"prototypes": self._schemas["prototypes"]} if self.is_closing(height) else self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        return self._pool_rule if self.is_closing(height) else {**super().rules(height), **self._pool_rule}

    def get_kept(self, height: int) -> Collection[str]:
        return ("model",) if self.is_closing(height) else ()

    def get_local_work(self, height: int) -> int:
        return 0 if self.is_closing(height) else super().get_local_work(height)

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        if kind != "prototypes":
            return
        classes, most = arrays["classes"], self.hyperparameters.max_prototypes
        if not len(classes):
            return
        if height == 1 and self.hyperparameters.reembed:
            raise PayloadError(f"payload 'prototypes': expected none in the first round, got {len(classes)}")
        if not np.all(classes[1:] >= classes[:-1]):
            raise PayloadError(f"payload 'prototypes': expected classes in ascending order, got {classes.tolist()}")
        if (most_of_one := int(np.bincount(classes).max())) > most:
            raise PayloadError(
                f"payload 'prototypes': expected at most {most} of a class, got {most_of_one} in {classes.tolist()}"
            )
        if self.hyperparameters.normalize:
            # Squares of float32 are exact in float64, and a running sum has one order: the same bits for all who vote.
            longest = float(np.square(arrays["prototypes"], dtype=np.float64).cumsum(1)[:, -1].max()) ** 0.5
            if longest > MAX_LENGTH:
                raise PayloadError(
                    f"payload 'prototypes': expected rows of length {MAX_LENGTH} at most, got {longest:g}"
                )
