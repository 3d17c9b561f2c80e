"""`fednode.connect`: a running node, asked from Python over its admin socket, or over TCP with a token."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fednode._settings import write_settings
from node.admin.client import AdminClient
from node.admin.json_view import to_json
from node.admin.place import read_configured_place, read_place, validate_socket
from node.errors import ConfigError, InvalidRequest, NodeError
from node.ledger.series import KEYS, choose_measure, choose_series, flatten, flatten_members
from node.pb import admin_pb2 as pb

if TYPE_CHECKING:
    from torch import nn

    from fednode.prediction import Predictions
    from node.admin.address import AdminAddress

Record = dict[str, Any]
CONFIG_SUFFIXES = (".yaml", ".yml")
PREDICT_S = 60.0


def connect(place: str | PathLike[str], token_file: str | PathLike[str] | None = None) -> Client:
    """Opens a client of the node at `place`, once the node has answered.

        with fednode.connect("node0.yaml") as node:
            print(node.status()["accuracy"])

    `place` is the node's configuration (a file, or a name that ends in .yaml), the path of its admin socket, or its
    address over TCP: `host:port` on this machine, `ID@host:port` on another. An address needs a token, whose file
    `token_file` names, or the variable FEDNODE_TOKEN_FILE.

    Raises ConfigError for what is no place, PermissionRefused where it may not be asked, NodeUnreachable where nobody
    answers in time.
    """
    client = Client(find_node(place, token_file))
    try:
        client.check()
    except BaseException:
        client.close()
        raise
    return client


def find_node(place: str | PathLike[str], token_file: str | PathLike[str] | None) -> AdminAddress:
    """Finds where the node of this configuration or address answers."""
    env: Mapping[str, str] = os.environ
    if token_file is not None:
        from node.admin.address import TOKEN_FILE_VARIABLE

        env = {**os.environ, TOKEN_FILE_VARIABLE: os.fspath(token_file)}
    path = Path(place)
    if path.suffix in CONFIG_SUFFIXES or path.is_file():
        try:
            found, _ = read_configured_place(path, env)
        except ConfigError as error:
            raise ConfigError("\n".join([str(error), *error.problems])) from error
    else:
        try:
            found = read_place(os.fspath(place), env)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if isinstance(found, Path):
        validate_socket(found)
    return found


class Client:
    """A running node: its state, and the decisions of its operator. Made by `fednode.connect`.

    Calls return dictionaries, and lists of them, with the keys that the command of the same name prints with `--json`.
    Nothing is cached: every call asks the node. Any thread may call, several at a time, also beside a running event
    loop; in a coroutine `fednode.aconnect` asks without blocking the loop.

    Each call raises NodeUnreachable where the node does not answer in time, and another NodeError where it refuses.
    """

    def __init__(self, place: AdminAddress) -> None:
        self._place = place
        self._admin = AdminClient(place)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Client of {self._admin.place}{', closed' if self._is_closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the client. Calls in other threads raise NodeError, and `watch` ends."""
        self._is_closed = True
        self._admin.close()

    def open_another(self) -> Client:
        """Opens another client of the same node, to be closed by itself."""
        self._check_open()
        return Client(self._place)

    @contextmanager
    def _asking(self) -> Iterator[AdminClient]:
        self._check_open()
        try:
            yield self._admin
        except (NodeError, ValueError):  # the latter is gRPC's, of a channel that was closed a moment ago
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise NodeError(f"the client of {self._admin.place} is closed")

    def check(self) -> None:
        """Raises NodeUnreachable where no node answers, PermissionRefused where the node refuses this caller."""
        with self._asking() as admin:
            admin.get_version()

    # ---- its state

    def status(self) -> Record:
        """Returns the state of the node: height, round, accuracy, peers. As `fednode status --json`."""
        with self._asking() as admin:
            return to_json(admin.get_status())

    def rounds(self, limit: int | None = None) -> list[Record]:
        """Returns all rounds, or the newest `limit`, the oldest of them first. As `fednode rounds list --json`."""
        if limit is not None and limit < 1:
            raise InvalidRequest(f"limit: expected at least 1 (got {limit})")
        with self._asking() as admin:
            return [to_json(record) for record in admin.iterate_rounds(limit=limit)][::-1]

    def round(self, height: int) -> Record:
        """Returns the round that made the block of this height: who took part, what was refused and why, times, bytes,
        accuracy. As `fednode rounds show --json`."""
        with self._asking() as admin:
            return to_json(admin.get_round(height))

    def metrics(
        self, series: Iterable[str] | str | None = None, *, first: int = 1, last: int | None = None
    ) -> list[Record]:
        """Returns what the node measured, a row for each round that it took part in, as `fednode metrics --json` prints
        them.

            pandas.DataFrame(node.metrics()).plot("height", "accuracy")

        A row has `height`, `run`, `round`, `time` and each of the `series`, None where it was not measured. These are
        names such as `accuracy` or `seconds.train`; "all" stands for every series there is. `first` and `last` are
        heights.
        """
        with self._asking() as admin:
            rounds = admin.iterate_rounds(first, reverse=True)
            wanted = takewhile(lambda record: last is None or record.height <= last, rounds)
            rows = [flatten(record) for record in wanted if record.measured]
        names = choose_series(series, rows)
        return [{name: row.get(name) for name in (*KEYS, *names)} for row in rows]

    def member_metrics(self, measure: str | None = None, *, first: int = 1, last: int | None = None) -> list[Record]:
        """Returns one measure that members publish, `accuracy` by default, side by side: a row for each round for which
        any member has published it, as `fednode metrics --members --json` prints them.

            rows = node.member_metrics("auc")
            pandas.DataFrame([row["members"] for row in rows], [row["height"] for row in rows]).plot()

        Each site states its own figures, unverified, and only sites whose configuration says `training.publish_metrics`
        do. `first` and `last` are heights.
        """
        chosen = choose_measure(measure)
        with self._asking() as admin:
            rounds = admin.iterate_rounds(first, reverse=True)
            wanted = takewhile(lambda record: last is None or record.height <= last, rounds)
            rows = [flatten_members(record, chosen) for record in wanted]
        return [row for row in rows if row["members"]]

    def watch(self, *kinds: str, since: str = "") -> Iterator[Record]:
        """Yields the events of the node as they happen, until the caller stops. As `fednode chain watch --json`.

            for event in node.watch("block", "round"):
                print(event["kind"], event["data"])

        Without `kinds` it yields every kind. `since` is the `cursor` of an event: the node continues after it, with the
        events it still keeps; "0-0" is from the oldest on. `missed` counts the events before this one that it no longer
        kept. Raises NodeUnreachable when the node ends: continue with the last cursor once it is back.
        """
        with self._asking() as admin:
            try:
                for event in admin.watch(kinds, since):
                    yield _show_event(event)
            except NodeError:
                if not self._is_closed:
                    raise

    def members(self) -> Record:
        """Returns the members, the observers and the quorum. As `fednode members list --json`."""
        with self._asking() as admin:
            return to_json(admin.list_members())

    def runs(self) -> list[Record]:
        """Returns the runs that the federation has agreed on, the first one first. As `fednode runs list --json`."""
        with self._asking() as admin:
            return [to_json(run) for run in admin.list_runs()]

    def statistics(self, run: int = 0) -> Record:
        """Returns the statistics that the members of a run published of their samples, all together and site by site; 0
        is the newest run. As `fednode statistics --json`."""
        with self._asking() as admin:
            return to_json(admin.get_statistics(run))

    def evaluations(self, run: int | None = None) -> list[Record]:
        """Returns the measures that each site made of a model on its own test samples, of all evaluations or of the one
        with this run number; 0 is the newest. As `fednode evaluation --json`."""
        with self._asking() as admin:
            return [to_json(one) for one in admin.list_evaluations(run)]

    def proposals(self) -> list[Record]:
        """Returns the changes that wait for approval. As `fednode proposals list --json`."""
        with self._asking() as admin:
            return [to_json(proposal) for proposal in admin.list_proposals()]

    # ---- the decisions of its operator

    def propose(
        self,
        /,
        kind: str,
        *,
        note: str = "",
        expires: int | None = None,
        first: int | None = None,
        dry_run: bool = False,
        **terms: Any,
    ) -> Record:
        """Has the node sign a change of the federation and send it to all members. As `fednode propose --yes --json`.

            node.propose("start_run", initial="continue", set={"lr": 0.05}, rounds=100, dry_run=True)
            node.propose("remove_member", name="hospital-d", note="left the study")

        `kind` and `terms` are those of the admin RPC's ProposeRequest: `add_member(request)`, `remove_member(name)`,
        `replace_key(name, request)`, `pardon(name)`, `leave()`, `start_run(run, set, rounds, initial)`,
        `evaluation(run, round, min_samples, min_count, lend)`, `set_rounds(rounds)`, `end_run()`,
        `set_rules(rules, set)`, `upgrade(protocol)`, `add_observer(request)`, `remove_observer(name)`. `set` may be
        settings as `simulate` takes them, and `initial` a Path to a file on the node's machine. An evaluation with
        `lend` has sites lend their own models; this one does so by `approve(id, lend=True)`.

        With `dry_run` nothing is signed: read `differences`. `note` stands on the chain; the change stays open for
        `expires` heights, and no block before height `first` may hold it. Raises NodeError for a change that is not
        possible.
        """
        request = pb.ProposeRequest(
            kind=kind, terms=_write_terms(terms), note=note, first=first, heights=expires, dry_run=dry_run
        )
        with self._asking() as admin:
            return to_json(admin.propose(request))

    def approve(self, change: str, *, no_train: bool = False, lend: bool = False) -> Record:
        """Has the node sign its approval of a change, given by its whole id; `proposals()` lists it beside the
        differences it makes. As `fednode approve --yes --json`. With `no_train` this site agrees to a run and does not
        train in it.

        With `lend` it sends the weights of its own model to all members and observers, for an evaluation in which sites
        `lend`; without it never does. The last approval before the evaluation begins counts.
        """
        with self._asking() as admin:
            return to_json(admin.approve(change, no_train=no_train, lend=lend))

    # ---- its model

    def predict(
        self,
        samples: object,
        *,
        label: str | tuple[str, ...] | None = None,
        prior: float | None = None,
        round: int | str = "",  # noqa: A002 (as the command has it)
        calibrated: bool = False,
        answer_by: str = "",
        timeout_s: float = PREDICT_S,
    ) -> Predictions:
        """Classifies samples with the node's model: objects, or files as `fednode predict` reads them. The columns of a
        table and a frame are matched by name.

            said = node.predict(images)         # [N, H, W], [N, H, W, C], [N, C, H, W] or, for features, [N, F]
            said.labels, said.probabilities     # [N], and [N, K] for K classes

        Objects are arrays and tensors, frames, and Datasets, as `fednode.simulate` takes them, with labels or without.

        `label` names the column of labels in a table: by default the one that the node's configuration names, or
        `label`, if the table has it. With `prior` the answers lean to the shares that classes have among the node's own
        samples: from 0, as everyone's, to 1, as this site's. `round` chooses whose model answers: newest, best or a
        number; by default the best of a run that selects one and is over, else the newest. `answer_by` is federation,
        alone or mixed, by default as the node's configuration says (training.answer_by). With `calibrated`
        probabilities are scaled by a temperature found on the node's val samples. The node's worker answers when it is
        free of a round; raises NodeUnreachable where that takes longer than `timeout_s`.
        """
        from fednode.prediction import predict
        from node.admin.asking import Labelled, NodeAtRound

        with self._asking() as admin:
            asked = NodeAtRound(admin, str(round), calibrated=calibrated, answer_by=answer_by)
            said = predict(asked, samples, Labelled.fetch(admin, label), timeout_s, prior)
            told = asked.told
            return replace(said, answer_by=told.answer_by, weight=told.weight, temperature=told.temperature)

    def evaluate(
        self,
        inputs: object,
        *,
        label: str | tuple[str, ...] | None = None,
        resamples: int = 1000,
        threshold: float | None = None,
        prevalence: float | None = None,
        positive: str | None = None,
        by: str | None = None,
        cuts: Sequence[float] = (),
        round: int | str = "",  # noqa: A002 (as the command has it)
        calibrated: bool = False,
        timeout_s: float = PREDICT_S,
    ) -> Record:
        """Measures the node's model on labelled samples: objects as `predict` takes them, such as (x, y), files, or
        directories that hold one for each class. As `fednode evaluate --json`: sensitivity, specificity, AUC and the
        others, with intervals, some of them found by `resamples` of the bootstrap. Under `alone` are the same measures
        of the model trained without the others, None where the node trains none, and `verdict`, which compares both;
        under `mixed` those of both mixed. `label`, `round`, `calibrated` and `timeout_s` are as in `predict`.

        Under `points` are the sensitivity, specificity and predictive values of a class from a `threshold` on, at a
        `prevalence`, where one of them or the class, `positive`, is named; under `groups` the measures of the rows for
        each value of the column `by` of a table or frame; many different numbers are cut at `cuts` or their quartiles.
        """
        from fednode.prediction import evaluate
        from node.admin.asking import Labelled
        from node.admin.judging import Details, ask_federation, complete

        details = Details(threshold, prevalence, positive, by, cuts)
        with self._asking() as admin:
            asked = ask_federation(admin, str(round), calibrated=calibrated)
            found = evaluate(asked, inputs, Labelled.fetch(admin, label), timeout_s, resamples, details)
            return complete(found, asked, admin).to_record()

    def model(
        self,
        *,
        plugins: Iterable[str] = (),
        round: int | str = "",  # noqa: A002 (as the command has it)
    ) -> nn.Module:
        """Returns a copy of the node's model as it last wrote it to disk, which it does after each round that it has
        applied, or of another `round`, as in `predict`. The copy is on the CPU, in eval mode, and takes samples as they
        are, as `fednode.Simulation.model` does. A user's own module is imported here only where `plugins` names its
        package. Raises NodeError where it cannot be built, NotFound where the node has none yet."""
        from ml.errors import MlError
        from ml.models.normalised import Normalised
        from ml.plugins import Plugins
        from node.admin.exported_model import RebuiltModel

        with self._asking() as admin:
            try:
                built = RebuiltModel.read(admin.export_model(str(round)), plugins=Plugins.of(plugins))
            except MlError as error:
                raise NodeError(str(error).replace("training.plugins", "plugins")) from error
        taken = built.input
        return Normalised(built.model, taken.mean, taken.std, fills=taken.fills_empty).eval()


# ---- requests and replies


def _show_event(event: pb.Event) -> Record:
    data = json.loads(event.data)
    return {"cursor": event.cursor, "time": event.time, "kind": event.kind, "data": data, "missed": event.missed}


def _write_terms(terms: Mapping[str, Any]) -> str:
    """Returns the terms as JSON. Raises ConfigError for a value that JSON cannot hold."""
    written = dict(terms)
    if isinstance(settings := written.get("set"), Mapping):
        written["set"] = write_settings(settings)
    if isinstance(initial := written.get("initial"), PathLike):
        written["initial"] = str(Path(initial).absolute())
    try:
        return json.dumps(written, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"expected numbers, texts, lists or mappings ({error})") from error
