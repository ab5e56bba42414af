# smoe: run `make help` for the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINS := pyproject.toml constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help venv demo test test-slow test-net lint types contracts unit wheel kernels bench-decode bench-cache bench-offload bench-quality bench-regroup bench-comm bench-speculation bench-serve gpu-check clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps make the second run of any target install nothing.
$(VENV)/.run-stamp: $(PINS) | $(BIN)/python
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(VENV)/.dev-stamp: $(VENV)/.run-stamp
	$(PIP) -e '.[dev,bench]'
	@touch $@

venv: $(VENV)/.run-stamp  ## make the environment in .venv

demo: venv  ## install, then generate with a quarter of the experts resident, through Ray actors
	$(BIN)/smoe generate --model builtin --expert-memory 25% --max-tokens 96 --temperature 0.8 --seed 7 \
		--prompt "Once upon a time there was a little girl who lived"

test: lint types contracts unit  ## lint, type check, import contracts, tests

lint: $(VENV)/.dev-stamp
	$(BIN)/ruff check .

types: $(VENV)/.dev-stamp
	$(BIN)/mypy

contracts: $(VENV)/.dev-stamp
	$(BIN)/lint-imports

unit: $(VENV)/.dev-stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

test-slow: $(VENV)/.dev-stamp  ## the slower tier of tests (wheel in a fresh environment, large sweeps)
	$(BIN)/python -m pytest -m slow

test-net: $(VENV)/.dev-stamp  ## tests on hosts as network namespaces (needs root)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m net tests/net -rs

wheel: $(VENV)/.dev-stamp  ## build the wheel into dist/
	$(BIN)/python -m build --no-isolation --wheel --outdir dist .

kernels: $(VENV)/.dev-stamp  ## rebuild the CPU kernel library (needs gcc)
	$(BIN)/python -m smoe.kernels.build

bench-decode: $(VENV)/.dev-stamp  ## decode speed against transformers; QUICK=1 for minutes
	$(BIN)/smoe bench decode $(if $(QUICK),--quick)

bench-quality: $(VENV)/.dev-stamp  ## perplexity that lossy policies cost, and the time they save; QUICK=1 for two minutes
	$(BIN)/smoe bench quality $(if $(QUICK),--quick)

bench-cache: $(VENV)/.dev-stamp  ## cache and prefetch policies by simulation; QUICK=1 for minutes
	$(BIN)/smoe bench cache $(if $(QUICK),--quick)

bench-regroup: $(VENV)/.dev-stamp  ## experts grouped by device: locality on held-out text, every solver; QUICK=1 for two minutes
	$(BIN)/smoe bench regroup $(if $(QUICK),--quick)

bench-comm: $(VENV)/.dev-stamp  ## schedules and placements behind shaped links (needs root); QUICK=1 for two minutes
	$(BIN)/smoe bench comm $(if $(QUICK),--quick)

bench-speculation: $(VENV)/.dev-stamp  ## drafts against demand paging at equal memory; QUICK=1 for minutes
	$(BIN)/smoe bench speculation $(if $(QUICK),--quick)

bench-serve: $(VENV)/.dev-stamp  ## serving beside transformers serve, its overhead, rates within an SLO; QUICK=1 for minutes
	$(BIN)/smoe bench serve $(if $(QUICK),--quick)

bench-offload: $(VENV)/.dev-stamp  ## decode from disk against its bound and against peers; QUICK=1 for minutes
	$(BIN)/smoe bench offload $(if $(QUICK),--quick)

gpu-check: $(VENV)/.dev-stamp  ## test and time the CUDA paths (needs a GPU; under ten minutes)
	$(BIN)/python -m smoe.bench.gpu_check $(if $(QUICK),--quick)

clean:  ## remove build products, keep .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
