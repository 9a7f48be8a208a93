# Every target sets up .venv by itself the first time. PYTHON=python3.12 picks another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test lint bench clean

help:
	@echo "make demo    train a small translator here, the paper's model beside its baseline"
	@echo "make test    run the tests"
	@echo "make lint    ruff (rules and format) and mypy"
	@echo "make bench   measure the layers beside their peers, CPU or GPU"
	@echo "make clean   remove .venv and caches"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "qknorm needs Python 3.11 or newer; name one with PYTHON=, e.g. make PYTHON=python3.12 demo"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(READY)

setup: $(READY)

demo: $(READY)
	$(BIN)/qknorm demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/attention.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage build dist
