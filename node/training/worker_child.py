"""The worker child: torch, a client and its checkpoints, answering the calls of `node.training.worker` (which lists
them).

Run as `python -m node.training.worker_child`; standard input is the socket to the daemon, which logs all output.
Between two optimiser steps, or two chunks of samples to classify, it checks whether the call was cancelled. Errors that
the methods foresee (`MlError`) are answers; any other ends the process, with its traceback in the daemon's log and a
new worker in its place.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from chain.store.interface import Faults
from ml.errors import Abandoned, DataError, MlError, SpecError, Spoiled, Stopped
from ml.payload import Arrays, decode_arrays
from ml.plugins import Plugins
from ml.specs.privacy import list_noise
from ml.specs.run_schema import describe_payloads
from node.host.collector import collect_seldom, leave_out_loaded
from node.training.beside import Beside
from node.training.calls import Calls
from node.training.checkpoint import Checkpoint, Checkpoints, Phase, forget_old_runs, read_checkpoint
from node.training.data_watch import DataWatch
from node.training.exchange import AGGREGATE, Exchange, FileUnusable
from node.training.frames import Frame
from node.training.kept_rounds import get_kept_path
from node.training.lending import take_own_model
from node.training.own_split import OwnSplit, open_own_sides
from node.training.privacy_ledger import GUESSABLE_NOISE, PrivacyLedger
from node.training.progress import ProgressMeter
from node.training.session import Built, Session
from node.training.trainer import get_info
from node.training.worker_config import LOADS, TERMS

Config = Mapping[str, Any]
BuildClient = Callable[[Config, Arrays], Built]  # from a configuration and the initial model

_PR_SET_PDEATHSIG = 1


def serve(sock: socket.socket, build_client: BuildClient, faults: Faults | None = None) -> None:
    """Answers calls until the stream ends."""
    calls = Calls(sock)
    frame = calls.receive()
    if frame is not None and frame.header["call"] == "load":
        load()
        frame = calls.receive()
    if frame is None:
        return
    config = frame.header["config"]
    os.nice(config["niceness"])
    try:
        initial = _read_initial_model(config, frame.attachments)
        built = build_client(config, initial)
        checkpoint_dir = Path(config["checkpoint_dir"])
        keep_as = partial(get_kept_path, checkpoint_dir) if config["keeps_rounds"] else None
        checkpoints = Checkpoints(checkpoint_dir, faults, keep_as)
        own_dir = None if config["own_dir"] is None else Path(config["own_dir"])
        forget_old_runs(checkpoints.directory, own_dir)
        outgoing_dir, before = Path(config["outgoing_dir"]), _read_before(config)
        before_dir = None if config["before_dir"] is None else Path(config["before_dir"])
        beside = None
        if built.alone is not None:
            beside = Beside(built.alone, checkpoints.directory, before_dir)
        session = Session(
            built,
            checkpoints,
            outgoing_dir,
            config["checkpoint_every"],
            before,
            config["run"],
            beside,
            hides_itself=config["hides_itself"],
        )
        if own_dir is not None and session.resumed is None:
            take_own_model(built.client, own_dir, config["own_round"], lends=config["lends"])
    except (MlError, OSError) as error:
        calls.answer(frame.header["number"], {"failed": str(error)})
        return
    info = get_info(built.client, built.device, built.precision, session.resumed, session.data_change)
    calls.answer(frame.header["number"], {"result": asdict(info), "saved": session.saved})
    session.save()
    leave_out_loaded()
    while (frame := calls.receive(session.use_time)) is not None:
        _answer(calls, session, frame)
        session.save()
    session.close()


def _answer(calls: Calls, session: Session, frame: Frame) -> None:
    number = frame.header["number"]
    attachments: Mapping[str, bytes] = {}
    place = f"round {frame.header['round']}: " if "round" in frame.header else ""

    def should_stop() -> bool:
        return calls.is_cancelled(number)

    try:
        match frame.header["call"]:
            case "train":
                beacon = bytes.fromhex(frame.header["beacon"])
                shared = Exchange.from_frame(frame.header, frame.attachments)
                meter = ProgressMeter(lambda progress: calls.report(number, progress))
                result, attachments = session.train(
                    frame.header["round"], beacon, frame.header["num_iterations"], shared, should_stop, meter.on_step
                )
            case "apply":
                exchange = Exchange.from_frame(frame.header, frame.attachments)
                result = session.apply(frame.header["round"], frame.attachments.get(AGGREGATE), exchange)
            case "pass_over":
                result = session.pass_over(frame.header["round"])
            case "measure":
                result = session.measure()
            case "answers":
                result, attachments = session.list_answers()
            case "score":
                result = session.score(frame.header["round"], frame.attachments, should_stop)
            case "tell_of":
                attachments = session.tell_of(frame.attachments[AGGREGATE], frame.header["min_samples"])
                result = {}
            case _:
                asked = frame.header
                samples = frame.attachments["samples"]
                result, attachments = session.predict(
                    samples, asked["alone"], asked["kappa"], should_stop, asked["kept"], asked["calibrated"]
                )
    except Abandoned:
        answer: Mapping[str, Any] = {"abandoned": True}
    except Stopped:
        answer = {"stopped": True}
    except (MlError, FileUnusable) as error:
        answer = {"failed": f"{place}{error}", "spoiled": isinstance(error, Spoiled)}
    else:
        answer = {"result": result}
    calls.answer(number, {**answer, "saved": session.saved}, attachments)


def _read_before(config: Config) -> Checkpoint | None:
    """Returns the client's state after the last round of the run that this one continues; None where there is none."""
    if config["before_dir"] is None:
        return None
    before = read_checkpoint(Path(config["before_dir"]), Phase.APPLIED)
    return before if before is not None and before.round_number == config["before_round"] else None


def _read_initial_model(config: Config, attachments: Mapping[str, bytes]) -> Arrays:
    data = (
        attachments["initial_model"] if "initial_model" in attachments else Path(config["initial_model"]).read_bytes()
    )
    return decode_arrays(data, len(data))


def load() -> None:
    """Imports the modules that take long, for any run."""
    for name in LOADS:
        import_module(name)


def build_client(config: Config, initial: Arrays) -> Built:
    """Builds the client that this node trains. Raises MlError."""
    if config["engine"].get("deterministic"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when torch first multiplies on a GPU
    import torch  # takes a second; the start call has been read, and the daemon's death is noticed meanwhile

    from ml.clients.alone import TrainingAlone
    from ml.clients.answering import Answering
    from ml.clients.build import Compute, Federation, make_client
    from ml.data.base import InputFormat
    from ml.data.image_cache import ImageCache
    from ml.data.own_transform import load_asked
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    if config["threads"] is not None:
        torch.set_num_threads(config["threads"])
    torch.set_num_interop_threads(1)
    genesis = (*TERMS, "max_weight", "max_abs", "rounds", "num_members")
    sides, watch = None, None
    if config["site_dir"] is not None:
        terms = {name: config[name] for name in ("input", "classes", "task", "labels")}
        watch = DataWatch(Path(config["site_dir"]), config["data"], terms)
        sides = open_own_sides(Path(config["site_dir"]), config["data"], makes_seed=True)
    try:
        client = make_client(
            Federation(**{name: config[name] for name in genesis}, plugins=Plugins.of(config["plugins"])),
            initial=initial,
            compute=Compute(config["device"], config["engine"]),
            cache=ImageCache.of_node(config["data"], config["data_dir"], prunes=True),
            **{name: config[name] for name in ("data", "seed", "max_loss_ratio")},
            sides=sides,
            on_read=(lambda train, test: None) if watch is None else watch.on_read,
        )
    except DataError as error:
        raise DataError(f"0 samples: contributes nothing, until fednode reload finds some: {error}") from error
    if sides is not None:
        OwnSplit(Path(config["site_dir"])).write(sides)
    if config["schema"] is not None and describe_payloads(client.spec) != config["schema"]:
        raise SpecError(
            "schema", f"expected what {client.spec.name} sends as its plugin here describes it, got another"
        )
    alone = TrainingAlone(client) if config["compare_local"] else None
    hyper, ledger = client.spec.hyperparameters, None
    if hyper.is_counted:
        ledger = PrivacyLedger.open(
            Path(config["privacy_file"]),
            hyper.delta,
            config["privacy_budget"],
            run=config["run"],
            noise=list_noise(hyper),
            samples=client.num_train,
            sets_aside=config["privacy_set_aside"] == GUESSABLE_NOISE,
        )
    answering = Answering(client, InputFormat.from_mapping(config["input"]), load_asked(config["data"]), alone)
    return Built(
        client,
        answering.answer,
        str(client.device),
        client.engine.get_precision(client.device, client.state.model),
        alone,
        ledger,
        watch,
    )


def main(build: BuildClient = build_client, faults: Faults | None = None) -> None:
    """Runs the process: it ends when the daemon does, leaves Ctrl-C to it, and hides its socket from imported code.

    `faults` is called at every step of writing a checkpoint; nothing in production uses it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    collect_seldom()
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr, level=logging.INFO)
    logging.captureWarnings(True)
    with socket.socket(fileno=os.dup(0)) as sock, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
        serve(sock, build, faults)
    logging.shutdown()
    os._exit(0)  # nothing is left to do; unloading torch would take 0.4 s


if __name__ == "__main__":
    main()
