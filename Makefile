# `make test` and `make demo` do all set-up on a machine with Python 3.11+, git and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

SECONDS := 20
FUZZ    := $(VENV)/.fuzz-ready

.PHONY: setup test test-slow test-long fuzz check format proto lock demo clean

setup: $(READY)

# The exact torch first: a range may pull gigabytes of CUDA in where none is wanted.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(READY)

# Real processes get the cores to themselves; everything else shares them.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --ignore=tests/e2e
	$(BIN)/python -m pytest tests/e2e

test-slow: $(READY)
	$(BIN)/python -m pytest -m 'slow and not long' -n 2 --ignore=tests/e2e
	$(BIN)/python -m pytest -m 'slow and not long' tests/e2e

test-long: $(READY)
	$(BIN)/python -m pytest -m long

# SECONDS for each target; `make fuzz SECONDS=600` for longer, TARGETS="arrays push" for some.
fuzz: $(FUZZ)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(TARGETS)

$(FUZZ): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	@touch $(FUZZ)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(READY)
	PATH="$(abspath $(BIN)):$$PATH" sh proto/generate.sh

# Needs pip-tools on the path. torch for the CPU, since the one for CUDA stands on gigabytes more; the first lines stay.
lock:
	pip-compile --quiet --upgrade --generate-hashes --strip-extras --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
	  --extra data --constraint deploy/torch-cpu.txt --unsafe-package torch --output-file .lock.txt pyproject.toml
	{ sed -n '/^#/p' deploy/requirements.txt; sed '/^#/d;/^$$/d' .lock.txt; } >deploy/requirements.new
	mv deploy/requirements.new deploy/requirements.txt
	rm .lock.txt

demo: $(READY)
	$(BIN)/fednode demo

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build dist
