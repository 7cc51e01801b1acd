# `make run` and `make test` set up all they need; VENV=... and PYTHON=... choose where and with what.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 5000
OUTPUTS := $(or $(FASTLOOP_OUTPUTS),$(CURDIR)/outputs)

OUT ?= outputs/gpu

.PHONY: run test gpu ui readme check format clean

run: $(VENV)/.installed                 ## the five loaders of seed 000 on real digits, about two minutes
	$(BIN)/python -m fastloop.run experiment=quickstart

test: $(VENV)/.installed-dev            ## every test: contracts, real processes, lint, types, floors, wheel
	$(BIN)/python -m pytest

# Nothing is installed: a machine with a GPU has its own torch, and perhaps no network. WHEELS=folder
# has the rest, see experiments/gpu_wheels.py; GPU_FLAGS="--device cpu --small" runs it without a GPU.
gpu:                                    ## tests and experiments on a GPU, ten minutes; figures in OUT
	$(or $(wildcard $(BIN)/python),$(PYTHON)) experiments/gpu.py --out "$(OUT)" \
		$(if $(WHEELS),--wheels "$(WHEELS)") $(GPU_FLAGS)

# Without its job runner the server takes 0.5 GB instead of 2.3; never run it beside a measurement.
ui: $(VENV)/.installed                  ## MLflow's UI over outputs/, on this machine only
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false MLFLOW_DISABLE_TELEMETRY=true $(BIN)/mlflow ui \
		--host 127.0.0.1 --port $(PORT) --backend-store-uri sqlite:///$(OUTPUTS)/mlflow.db

readme: $(VENV)/.installed              ## the README's tables of options, from conf/
	$(BIN)/python -m fastloop.catalogue README.md

check: format readme test                     ## what a commit must pass

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .import_linter_cache

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@ $(VENV)/.installed
