# `make demo` and `make test` are all a newcomer needs: each makes its own environment in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check check-runtime check-page fuzz reliability bench results docs dist clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable ".[demo]"
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/pip install --quiet --editable ".[demo,test]"
	touch $@

$(VENV)/.bench: $(VENV)/.test
	$(BIN)/pip install --quiet --editable ".[demo,test,bench]"
	touch $@

$(VENV)/.page: $(VENV)/.test
	$(BIN)/pip install --quiet --editable ".[demo,test,page]"
	touch $@

$(VENV)/.docs: $(VENV)/.test
	$(BIN)/pip install --quiet --editable ".[demo,test,docs]"
	touch $@

$(VENV)/.release: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)/release
	$(VENV)/release/bin/pip install --quiet build twine
	touch $@

demo: $(VENV)/.demo  ## train, compress and evaluate a network on digits
	$(BIN)/pocketbayes demo

test: $(VENV)/.test  ## the default test suite
	$(BIN)/python -m pytest -n auto

test-slow: $(VENV)/.test  ## everything, the slow tests too
	$(BIN)/python -m pytest -n auto -m "not page"

check: $(VENV)/.test  ## lint and types
	$(BIN)/ruff check src tests benchmarks experiments fuzz
	$(BIN)/ruff format --check src tests benchmarks experiments fuzz
	$(BIN)/mypy

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
check-page: $(VENV)/.page  ## the report page in headless Chromium (CHROMIUM=PATH for one of your own)
	test -n "$(CHROMIUM)" || command -v chromium || { $(SUDO) apt-get update && $(SUDO) apt-get install --yes chromium; }
	$(BIN)/python -m pytest -m page tests/page

check-runtime: $(VENV)/.test  ## a machine without torch, in an environment of its own: same answers, size, time
	$(BIN)/python -m pytest -m slow -s tests/runtime

SECONDS ?= 60
fuzz: $(VENV)/.test  ## files that lie under right checksums, SECONDS=60 for each kind
	$(BIN)/python -m fuzz --seconds $(SECONDS)

reliability: $(VENV)/.test  ## a thousand kills, faults and load: docs/results/reliability.md
	$(BIN)/python -m experiments.reliability
	$(BIN)/python -m experiments.pages

bench: $(VENV)/.bench  ## ratios measured side by side with peers
	$(BIN)/python -m benchmarks

results: $(VENV)/.demo  ## write RESULTS.md and docs/results from the result files
	$(BIN)/python -m experiments.pages

docs: $(VENV)/.docs  ## the documentation site in site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

dist: $(VENV)/.release  ## wheel and source distribution in dist/, checked and tried in an empty environment
	rm -rf dist
	$(VENV)/release/bin/python -m build --quiet
	$(VENV)/release/bin/twine check --strict dist/*
	$(PYTHON) tests/install.py dist

clean:  ## remove what the other targets made
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
