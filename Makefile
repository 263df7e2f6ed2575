# Everything happens inside this folder: .venv holds the packages, runs/ what runs leave behind.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
export PIP_NO_CACHE_DIR := 1
BIN    := $(VENV)/bin
LOCK   := requirements.lock
# Options for `make run`, for example: make run UP="--rounds 10 --task digits-mlp"
UP     ?=

WHEELS := --quiet --no-header --no-annotate --system-certs --only-binary :all: --constraints $(LOCK)

.PHONY: install run test test-slow test-simulation test-docker lint format lock wheels clean

install: $(VENV)/.demo            ## what `make run` needs

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Cohort needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml $(LOCK) | $(VENV)/bin/python
	@echo "installing into $(VENV), which takes a minute or two"
	$(BIN)/pip install --quiet --constraint $(LOCK) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(LOCK) | $(VENV)/bin/python
	@echo "installing into $(VENV), which takes a minute or two"
	$(BIN)/pip install --quiet --constraint $(LOCK) --editable '.[demo,torch,optim,dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.simulation: pyproject.toml $(LOCK) | $(VENV)/.dev
	$(BIN)/pip install --quiet --constraint $(LOCK) --editable '.[simulation]'
	@touch $@

run: $(VENV)/.demo                ## a real federation on this machine
	$(BIN)/cohort up $(UP)

test: $(VENV)/.dev                ## everything but the slow, simulation and docker tests; clusters one after another
	$(BIN)/python -m pytest -m "network and not slow and not simulation and not docker"
	$(BIN)/python -m pytest -n 2 -m "not network and not slow and not simulation and not docker"

test-simulation: $(VENV)/.simulation    ## Flower's own simulation (installs Ray)
	$(BIN)/python -m pytest -m simulation

test-slow: $(VENV)/.dev           ## minutes: the papers' figures, kills, many fault histories
	$(BIN)/python -m pytest -m "slow and network"
	$(BIN)/python -m pytest -n 2 -m "slow and not network"

test-docker: $(VENV)/.dev         ## the containers, on a Docker engine
	$(BIN)/python -m pytest -m docker

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(VENV)/.dev                ## after a change to the dependencies in pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --all-extras --python-version 3.11 --no-annotate pyproject.toml -o $(LOCK)

# Raspberry Pi OS 12 and 13 (Debian 12 and 13), 64-bit: Python and the newest manylinux tag of each.
wheels: $(VENV)/.dev              ## asks the package index for aarch64 wheels of all that a device installs
	$(BIN)/uv pip compile $(WHEELS) --python-version 3.11 --python-platform aarch64-manylinux_2_36 pyproject.toml
	$(BIN)/uv pip compile $(WHEELS) --python-version 3.13 --python-platform aarch64-manylinux_2_40 pyproject.toml

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
