# Paceline. 'make help' lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready  # what a run needs
COMPLETE := $(VENV)/.complete  # and what the tests, the pages, the trackers and DALI need
SOURCES := pyproject.toml constraints.txt hatch_build.py $(wildcard framework/system/native/*.c)
INSTALL := $(BIN)/python -m pip install -q -c constraints.txt
# one more than the cores, since tests also wait; at most 8, which take about 1 GB each
PROCESSES := $(shell cores=$$(nproc); echo $$((cores < 7 ? cores + 1 : 8)))
# bytecode is kept: the tests start many processes, which would compile the framework anew
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup train dali test test-long check format docs fresh bench-overhead bench-diagnosis bench-data gpu bench-gpu faults cluster-test gpu-bundle

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(COMPLETE)  ## make .venv and install everything, pinned by constraints.txt

$(READY): $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e '.[turbo]'
	@touch $@

$(COMPLETE): $(READY)
	$(INSTALL) -e '.[albumentations,audio,dali,dev,docs,huggingface,kornia,metrics,mlflow,onnx,parquet,photos,report,safetensors,server,stats,tfrecord,turbo,video,wandb]'
	@touch $@

train: $(READY)  ## pack 1,797 handwritten digits and train a small CNN on them
	$(BIN)/paceline train

dali: $(READY)  ## install DALI, for data=dali
	$(INSTALL) -e '.[dali]'

test: $(COMPLETE)  ## the tests, side by side: ARGS=tests/loader for a part
	$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal --durations=30 --durations-min=3 -m 'not cluster and not slow' $(ARGS)

test-long: $(COMPLETE)  ## the tests that take long, and those that repeat another
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'slow and not cluster' $(ARGS)

check: $(COMPLETE)  ## lint, format, types and style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/python -m tests.style
	$(BIN)/python -m tests.same_collection

format: $(COMPLETE)  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(COMPLETE)  ## build the documentation into site/; a broken link fails
	$(BIN)/python -m mkdocs build -q --strict $(ARGS)

bench-overhead: $(COMPLETE)  ## the Trainer's cost a step beside a hand-written loop
	$(BIN)/python benchmarks/overhead.py

bench-diagnosis: $(COMPLETE)  ## planted causes, and what 'paceline diagnose' names: ARGS="--only NAME --runs 2"
	$(BIN)/python benchmarks/diagnosis.py $(ARGS)

BENCH := .venv.bench
BENCH_READY := $(BENCH)/.ready
# what would bring a torch or torchvision of its own, or must be compiled
BENCH_ALONE := litdata mosaicml-streaming pytorch-pfn-extras

# sees the packages of .venv, so that torch is the same; what it adds stays out of there
$(BENCH_READY): $(COMPLETE) benchmarks/constraints.txt
	@test -x $(BENCH)/bin/python || $(BIN)/python -m venv $(BENCH)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_paths()["purelib"])' \
	  > $$($(BENCH)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/paceline-setup.pth
	$(BENCH)/bin/python -m pip install -q -c constraints.txt -c benchmarks/constraints.txt -e '.[bench]'
	$(BENCH)/bin/python -m pip install -q --no-deps -c benchmarks/constraints.txt $(BENCH_ALONE)
	$(BENCH)/bin/python -m pip install -q --no-deps --no-build-isolation -c benchmarks/constraints.txt ffcv \
	  || echo 'ffcv cannot be compiled here, and stays out (Debian: apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev)'
	@touch $@

bench-data: $(BENCH_READY)  ## reading and packing beside the peers: IMAGES=folder-or-tar CIFAR=folder-or-tar
	$(BENCH)/bin/python benchmarks/data.py $(if $(IMAGES),--images $(IMAGES)) $(if $(CIFAR),--cifar $(CIFAR)) $(ARGS)

CUDA_IS_THERE = $(BIN)/python -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'

gpu: $(COMPLETE)  ## tests that need CUDA
	@if $(CUDA_IS_THERE); then $(BIN)/python -m pytest -m gpu $(ARGS); else echo 'no CUDA device here: nothing run'; fi

bench-gpu: $(COMPLETE)  ## figures of a GPU beside their goals: ARGS="--only PARTS --cifar10 FOLDER --out DIR"
	$(BIN)/python benchmarks/gpu.py $(ARGS)

gpu-bundle: $(COMPLETE)  ## what a GPU machine without a package registry needs: OUT=FOLDER CIFAR=FOLDER_OR_TAR DALI=FOLDER
	$(BIN)/python benchmarks/gpu_bundle.py $(OUT) $(if $(CIFAR),--cifar10 $(CIFAR)) $(ARGS)
	$(if $(DALI),$(BIN)/python benchmarks/gpu_dali.py $(DALI))

# hydra-ray-launcher alone asks for an old cloudpickle; it works with what submitit brings
$(VENV)/.cluster: $(COMPLETE)
	$(BIN)/python -m pip install -q hydra-optuna-sweeper hydra-submitit-launcher 'ray[default]<3'
	$(BIN)/python -m pip install -q --no-deps hydra-ray-launcher
	@touch $@

cluster-test: $(VENV)/.cluster  ## several hosts, Slurm, launchers, for real: root, and Debian's iproute2, slurm-wlm, munge
	$(BIN)/python -m pytest -m cluster -v -rs $(ARGS)

faults: $(COMPLETE)  ## faults by the thousand, and a table of what was survived (about an hour): ARGS="--only kills --seed 7 --times 1"
	$(BIN)/python -m tests.faults $(ARGS)
