# Everything a fresh checkout needs: Python 3.10+, make. `make help` lists what there is.

PYTHON ?= python3
DATA_DIR ?= data
MODEL ?= resnet50
TEST_WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
SETUP_INPUTS := pyproject.toml constraints.txt tools/setup_venv.py
BENCHES := $(filter-out bench/_%,$(sort $(wildcard bench/*.py)))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run train-cifar test test-all check format bench docs clean

help: ## List the targets
	@echo "make TARGET [NAME=value ...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile
	@echo "names: PYTHON=$(PYTHON) (used when .venv is made) ARGS=$(ARGS) MODEL=$(MODEL)"
	@echo "       DATA_DIR=$(DATA_DIR) TEST_WORKERS=$(TEST_WORKERS)"

# The set-up is done again when its inputs change; `rm -rf .venv` starts from nothing.
.venv/.stamp-run: $(SETUP_INPUTS)
	@$(PYTHON) tools/setup_venv.py --for run

.venv/.stamp-test: $(SETUP_INPUTS)
	@$(PYTHON) tools/setup_venv.py --for test

run: .venv/.stamp-run ## Train and measure: `stepscope run $(ARGS)`
	$(BIN)/stepscope run $(ARGS)

train-cifar: .venv/.stamp-run ## Train MODEL on CIFAR-10, which is fetched into DATA_DIR if need be
	$(BIN)/stepscope data get cifar10 --data-dir "$(DATA_DIR)"
	$(BIN)/stepscope run --model "$(MODEL)" --data cifar10 --data-dir "$(DATA_DIR)" $(ARGS)

# pytest exits with 5 when it finds no test. For the tests marked alone that is an error if a test
# bears the mark, and right if none does.
# A file stays with one worker, whose tests share its servers and runs; tests/conftest.py says which
# files begin.
test: check ## Format, lint and type checks, then the tests
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder -m "not long and not alone"
	@if grep -rqF --include='*.py' 'mark.alone' tests; then \
	  set -x; $(BIN)/pytest -m "alone and not long"; \
	else echo "no test is marked alone: no second pass"; fi

test-all: test ## Everything in `test`, then the tests marked long, one after the other
	$(BIN)/pytest -m long

check: .venv/.stamp-test ## Format, lint and type checks only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.stamp-test ## Format the code and sort the imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

bench: .venv/.stamp-run ## Run the scripts in bench/ one after the other
	@if [ -z "$(BENCHES)" ]; then echo "bench/ has no scripts"; fi
	@for script in $(BENCHES); do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

docs: .venv/.stamp-run ## Build the documentation as a site in site/
	$(BIN)/python -m pip install --quiet --constraint constraints.txt mkdocs-material >>.venv/setup.log
	$(BIN)/mkdocs build --quiet --strict

clean: ## Remove caches and build products; .venv, data and runs stay
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	find $(wildcard src tests tools bench) -name __pycache__ -type d -prune -exec rm -rf {} +
