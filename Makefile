# `make run` and `make test` set up all they need; VENV=... and PYTHON=... choose where and with what.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run test check format clean

run: $(VENV)/.installed                 ## the five loaders of seed 000 on real digits, about two minutes
	$(BIN)/python -m fastloop.run experiment=quickstart

test: $(VENV)/.installed-dev            ## every test: contracts, real processes, lint, types, floors, wheel
	$(BIN)/python -m pytest

check: format test                      ## what a commit must pass

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
