# Every target makes its own environment; Python (3.11 or newer), pip and a package index are all it takes.
PYTHON ?= python3
# A CPU build is taken where pip finds one first; any release in the range of pyproject.toml will do.
TORCH ?= torch==2.13.0
BIN := .venv/bin
ARGS ?=

.PHONY: quickstart test test-fast test-slow lint format docs smollm2 clean

quickstart: .venv/core
	$(BIN)/mempo train quickstart output=runs/quickstart-$$(date +%Y%m%d-%H%M%S) $(ARGS)

test: test-fast test-slow

test-fast: .venv/dev
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: .venv/dev
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev
	$(BIN)/python scripts/cli_reference.py docs/cli.md

smollm2: .venv/core
	$(BIN)/pip install -q ".[smollm2]"
	$(BIN)/python scripts/get_smollm2.py models/smollm2-135m

.venv/core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mempo needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V 2>&1); call make PYTHON=python3.11"; exit 1; }
	@began=$$(date +%s); $(PYTHON) -m venv .venv && $(BIN)/pip install -q "$(TORCH)" && $(BIN)/pip install -q -e . && \
	  touch .venv/core && echo "installed in $$(( $$(date +%s) - began )) s"

.venv/dev: .venv/core
	@began=$$(date +%s); $(BIN)/pip install -q -e ".[dev]" && \
	  touch .venv/dev && echo "test tools installed in $$(( $$(date +%s) - began )) s"

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
