# `make run` and `make test` set up all they need; VENV=... and PYTHON=... choose where and with what.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 5000
OUTPUTS := $(or $(FASTLOOP_OUTPUTS),$(CURDIR)/outputs)

OUT ?= outputs/gpu

# What an editable install compiles, or reads once.
NATIVE := fastloop/fastloader/native
BUILT_OF := pyproject.toml hatch_build.py $(wildcard $(NATIVE)/*.[ch] $(NATIVE)/*/*.[ch])

DOWNLOADS = Installing fastloop and its libraries in $(VENV): pip downloads up to $(1) now, most of which \
is torch with CUDA's libraries, unless it has them already. That takes minutes.

.PHONY: run test gpu ui docs check every-test lint soak format clean

run: $(VENV)/.installed                 ## five loaders on real handwritten digits, about a minute
	$(BIN)/python -m fastloop.run experiment=quickstart

test: $(VENV)/.installed-dev            ## what a change must not break
	$(BIN)/python -m pytest -m "not heavy and not soak"

# Nothing is installed: a machine with a GPU has its own torch, and perhaps no network. WHEELS=folder
# has the rest, see experiments/gpu/wheels.py; GPU_FLAGS="--device cpu --small" runs it without a GPU.
gpu:                                    ## tests and experiments on a GPU, nine minutes; figures in OUT
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m experiments.gpu.run --out "$(OUT)" \
		$(if $(WHEELS),--wheels "$(WHEELS)") $(GPU_FLAGS)

# Without its job runner the server takes 0.5 GB instead of 2.3; never run it beside a measurement.
ui: $(VENV)/.installed                  ## MLflow's UI over outputs/, on this machine only
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false MLFLOW_DISABLE_TELEMETRY=true $(BIN)/mlflow ui \
		--host 127.0.0.1 --port $(PORT) --backend-store-uri sqlite:///$(OUTPUTS)/mlflow.db

docs: $(VENV)/.installed-dev            ## docs/options.md, JSON Schemas, then the site in docs/_build/html
	$(BIN)/python -m fastloop.config.help docs/options.md
	$(BIN)/python docs/write_schemas.py
	$(BIN)/sphinx-build -W --keep-going -q -c docs . docs/_build/html

# The tests read docs/options.md: also with --jobs they begin once `docs` has written it.
check: lint docs                        ## what CI runs: all of this, and every test there is
	$(MAKE) every-test

every-test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --hypothesis-profile ci

lint: $(VENV)/.installed-dev            ## format, lint, floors and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright

soak: $(VENV)/.installed-dev            ## kills at random moments, thousands of epochs and examples
	$(BIN)/python -m pytest -m soak -o faulthandler_timeout=3600
	$(BIN)/python -m pytest -m property --hypothesis-profile soak -o faulthandler_timeout=3600

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist docs/_build .pytest_cache .ruff_cache .import_linter_cache

# pip shows what it downloads and how far it is, after a line that says how much that will be. It
# would compile 22,000 modules after the last download, one after the other. They are compiled beside
# it, and what is left then on all cores. A fifth of that are the libraries' own tests, which nothing
# imports; some others are for other versions of Python.
PIP_INSTALL = "$(BIN)/python" compile_installed.py -m pip install --no-compile
COMPILE = "$(BIN)/python" -m compileall -qq --workers 0 -x 'site-packages/.*/tests?/' \
	"$(VENV)/lib" || true

$(VENV)/.installed: $(BUILT_OF)
	@echo "$(call DOWNLOADS,3.3 GB)"
	"$(PYTHON)" -m venv "$(VENV)"
	$(PIP_INSTALL) --editable .
	$(COMPILE)
	touch "$@"

$(VENV)/.installed-dev: $(BUILT_OF)
	@echo "$(call DOWNLOADS,4 GB)"
	"$(PYTHON)" -m venv "$(VENV)"
	$(PIP_INSTALL) --editable ".[dev]"
	$(COMPILE)
	touch "$@" "$(VENV)/.installed"
