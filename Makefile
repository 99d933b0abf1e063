# Every target sets itself up: python3 (3.11 or later, with venv), make and git are enough.
# `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
JOBS   ?= 3
VENV   := .venv
BENCH  := .venv-bench
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BENCH_STAMP := $(BENCH)/.installed
MUTANTS := .venv-mutants
MUTANTS_STAMP := $(MUTANTS)/.installed

# pip's own remarks about itself do not help anybody who typed `make test`.
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The chart library of the page: files of a registry package, taken when rillet is set up.
CHART  := src/rillet/web/static/vendor
CHART_STAMP := $(CHART)/.version

.PHONY: help setup chart test long check lint format types contracts docs bench demo constraints clean \
	audit mutants peers quantiles timing

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' \
		| while IFS=$$'\t' read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

# --- set-up -------------------------------------------------------------------------------------

setup: $(STAMP) $(CHART_STAMP) ## make .venv with everything in it; the other targets do this by themselves

chart: $(CHART_STAMP) ## fetch the chart library of the live page

$(CHART_STAMP): scripts/chart.py
	$(PYTHON) scripts/chart.py $(CHART)

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "rillet needs Python 3.11 or later; type: make PYTHON=python3.12 …" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# A stamp, so that nothing is installed again until the list of what to install has changed.
$(STAMP): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,data,fast,dev]'
	@touch $@

# A virtual environment of its own: what rillet is measured against is heavy, and must not decide
# which versions rillet itself is tested with.
$(BENCH)/pyvenv.cfg:
	$(PYTHON) -m venv $(BENCH)

$(BENCH_STAMP): pyproject.toml constraints.txt benchmarks/requirements.txt benchmarks/constraints.txt \
		| $(BENCH)/pyvenv.cfg
	$(BENCH)/bin/python -m pip install --quiet --constraint benchmarks/constraints.txt \
		--requirement benchmarks/requirements.txt --editable '.[data,fast,mqtt,parquet,spark,web]'
	@touch $@

# Only what makes changes at random; the tests run in $(VENV).
$(MUTANTS_STAMP): scripts/mutants-requirements.txt
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install --quiet --requirement scripts/mutants-requirements.txt
	@touch $@

# --- tests and checks ---------------------------------------------------------------------------

test: $(STAMP) $(CHART_STAMP) ## run all tests but the long ones
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup

long: $(STAMP) $(CHART_STAMP) ## run the tests that take minutes
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup -m long

check: lint types contracts docs ## ruff, mypy, import contracts, documentation: all must be clean

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## let ruff put things right where it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports --no-logo

# Without its cache, which does not see that a docstring or scripts/formulas.py has changed.
docs: $(STAMP) ## build the documentation into site/, any warning is an error
	PYTHONPATH=scripts $(BIN)/zensical build --clean --strict

# --- things to look at --------------------------------------------------------------------------

bench: $(BENCH_STAMP) ## time rillet beside others: one table, and JSON in benchmarks/results/
	$(BENCH)/bin/python benchmarks/run.py --json benchmarks/results/latest.json

peers: $(BENCH_STAMP) ## compare the law of releases with OpenDP and jax-privacy
	$(BENCH)/bin/python benchmarks/peers.py

quantiles: $(BENCH_STAMP) ## live quantiles of real data beside OpenDP's of all values at once; a minute
	$(BENCH)/bin/python benchmarks/quantiles.py

audit: $(STAMP) ## audit every mechanism, and write what it found into docs/audit.md; ten minutes
	@mkdir -p build
	$(BIN)/rillet audit all --json docs/assets/audit.json --markdown build/audit.md
	$(BIN)/python scripts/audit_page.py build/audit.md

timing: $(STAMP) ## whether time depends on values or on noise: a million pairs of calls of each kind; minutes, on a quiet machine
	$(BIN)/python benchmarks/timing.py --page docs/timing.md

mutants: $(STAMP) $(MUTANTS_STAMP) ## 500 changes of the source, and which of them the tests notice; hours
	$(MUTANTS)/bin/python scripts/mutants.py choose
	$(BIN)/python scripts/mutants.py run
	$(BIN)/python scripts/mutants.py report

demo: $(STAMP) ## the main job on real data
	$(BIN)/rillet demo
	$(BIN)/rillet demo --clock

# --- upkeep -------------------------------------------------------------------------------------

# Names and versions only: `pip freeze` would also write where an editable package came from.
constraints: ## renew both files of pinned versions from clean environments
	@new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; \
	write() { { echo "# The versions that $$2 with. Renewed by: make constraints"; \
		"$$new/bin/python" -m pip freeze --exclude rillet; } > "$$1"; \
		if grep -nE '@|://|^-e' "$$1"; then echo "$$1: an address got in" >&2; exit 1; fi; }; \
	$(PYTHON) -m venv "$$new"; \
	"$$new/bin/python" -m pip install --quiet '.[all,data,fast,dev]'; \
	write constraints.txt "tests and checks run"; \
	$(PYTHON) -m venv --clear "$$new"; \
	"$$new/bin/python" -m pip install --quiet --constraint constraints.txt \
		--requirement benchmarks/requirements.txt '.[data,fast,mqtt,parquet,spark,web]'; \
	write benchmarks/constraints.txt "the benchmarks run"

clean: ## remove what the other targets made
	rm -rf $(VENV) $(BENCH) $(MUTANTS) $(CHART) build dist site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache benchmarks/results
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
