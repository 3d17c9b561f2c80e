"""Reads an experiment's file. Its form, its meaning and its report are checked before anything runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from node.config.problems import Problem, describe_error, report
from node.config.yaml_source import YamlSource, parse_value, read_sections
from node.errors import ConfigError
from node.experiments.contents import find_report_problems
from node.experiments.plan import Experiment, expand
from node.experiments.sections import ExperimentFile


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Reads the experiment in `path` under `overrides` (`base.rounds=2`). Raises ConfigError with every problem."""
    source = _read(path, overrides)
    try:
        file = ExperimentFile.model_validate_json(json.dumps(source.value))
    except ValidationError as error:
        problems = [describe_error(details, source, ExperimentFile) for details in error.errors(include_url=False)]
        raise report(problems, path) from error
    experiment, found = expand(file, source)
    found = found or find_report_problems(experiment)  # tables can only be checked against the points
    if found:
        raise report([Problem.at(source, keys, message) for keys, message in dict.fromkeys(found)], path)
    return experiment


def _read(path: Path, overrides: Sequence[str]) -> YamlSource:
    source = read_sections(path)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(f"--set {override}: expected KEY=VALUE with a dotted key, as in base.rounds=2")
        keys = tuple(key.split(".")) if key.partition(".")[0] != "sweep" else ("sweep", key.partition(".")[2])
        source = source.with_value(keys, parse_value(text, f"--set {key}"), f"--set {key}")
    return source
