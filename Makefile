# Paceline. 'make help' lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup train test check format fresh

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(READY)  ## make .venv and install everything, pinned by constraints.txt

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dali,dev]'
	@touch $@

train: $(READY)  ## pack scikit-learn's digits and train a small CNN on them
	$(BIN)/paceline train

test: $(READY)  ## the whole test suite
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(READY)  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-overhead: $(READY)  ## the Trainer's cost a step beside a hand-written loop
	$(BIN)/python benchmarks/overhead.py

gpu: $(READY)  ## tests that need CUDA
	@$(BIN)/python -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' \
	  && $(BIN)/python -m pytest -m gpu $(ARGS) || echo 'no CUDA device here: nothing run'
