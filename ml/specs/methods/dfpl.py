"""DFPL: prototypes are exchanged instead of models (ALGORITHMS §2).

Zhang et al., *DFPL: Decentralized Federated Prototype Learning Across Heterogeneous Data Distributions*. Each node
sends the mean embedding of each class it owns; the global prototype of a class is the mean over its owners, Eq. (2),
and pulls the local ones towards it, Eqs. (3) and (4).

Where we deviate: `proto_agg` owners divides by the number of owners, not by K, since absent prototypes would shrink a
class towards 0 (`divide_by_K` is as printed, K the authors of the round). The robust rules of `aggregation` are ours,
and so are `aux: contrast` and `normalize`: at the paper's lambda the classes of young networks collapse into one, and
these two prevent it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.errors import SpecError
from ml.specs.hyperparameters import Hyperparameters, choice, number, switch
from ml.specs.sharing import PrototypeHyperparameters, PrototypeSpec

DEFAULT_TAU = 0.07  # MP-FedCL's


@dataclass(frozen=True, kw_only=True)
class DfplHyperparameters(PrototypeHyperparameters):
    """Settings of DFPL. `lambda_` (genesis: `lambda`) weighs the auxiliary loss of Eq. (3), `aux` is its distance (l2
    is Eq. (4)), or with contrast how much nearer a sample is to its class's prototype than to the others', at the
    temperature `tau` (0.07 by default). `normalize` compares embeddings and prototypes at unit length.

    `aux_protos` takes the local prototypes from the mini-batch or from all local data; `iteration` says whether one of
    the `local_iterations` is a mini-batch step or an epoch; `infer` predicts by the classifier or the nearest
    prototype.
    """

    lambda_: float = number(1.0, "[0, inf)")
    aux: str = choice("l2", "sq", "mse", "contrast")
    aux_protos: str = choice("batch", "full")
    iteration: str = choice("step", "epoch")
    infer: str = choice("classifier", "prototype")
    normalize: bool | None = switch()
    tau: float | None = number(None, "(0, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau is not None and self.aux != "contrast":
            raise SpecError("method.tau", f"expected none with aux {self.aux}: only contrast has a temperature")

    @property
    def temperature(self) -> float:
        return DEFAULT_TAU if self.tau is None else self.tau

    @property
    def counts_epochs(self) -> bool:
        return super().counts_epochs or self.iteration == "epoch"


@dataclass(frozen=True)
class DfplSpec(PrototypeSpec):
    """DFPL's spec: members send and receive prototypes, and never weights."""

    name: ClassVar[str] = "dfpl"
    hides_samples: ClassVar[bool] = True
    settings: ClassVar[type[Hyperparameters]] = DfplHyperparameters

    hyperparameters: DfplHyperparameters

    def explain_not_private(self) -> str | None:
        if self.hyperparameters.aux_protos == "full":
            return "with aux_protos full every sample is in the loss of each"
        return super().explain_not_private()
