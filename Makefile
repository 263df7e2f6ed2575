# Installs, runs, tests and measures. Nothing is written outside this folder: .venv holds the packages, runs/ the runs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
LOCK   := requirements.lock
# Options for `make run`, for example: make run UP="--rounds 10 --clients 20"
UP     ?=
# The environment and the interpreter of `make test-newest-flower`.
NEWEST        := .venv-newest
NEWEST_PYTHON ?= $(PYTHON)
# For a template in examples/; left out on other Python versions (`make test-pythons`), to save time.
NEWEST_TORCH  := $(if $(filter .venv-newest,$(NEWEST)),torch==2.13.0)
# Options of `make nemesis`. ENGINE: server, cluster (of `cohort up`) or front-ends (two, on one PostgreSQL). BOUND: seconds
# from the last healed fault to a completed round, on an idle machine; 15, and 45 with front ends.
SEED    ?=
MINUTES ?= 60
ENGINE  ?= server
BOUND   ?=
# Older versions of Flower, on which the app must run too: deploy/flower/versions/__init__.py.
OLDER_FLOWERS := 1.40.0 1.41.0
OLDEST        := .venv-oldest
# The tests of the library: they need neither the app's dependencies nor a network.
LIBRARY_TESTS := tests/strategies tests/simulation/test_grid.py
WHEELS := --quiet --no-header --no-annotate --system-certs --only-binary :all: --constraints $(LOCK)
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate
# The images install from files with hashes, in the versions of $(LOCK), without torch's CUDA packages and uv.
IMAGE_LOCKS := deploy/locks
# All extras but browser, mlflow and wandb: mlflow allows only older versions of other packages, such as pyarrow.
LOCKED := demo torch data optim simulation tensorboard prometheus postgres docs dev
LEFT_OUT := $(shell sed -nE 's/^(cuda-[a-z0-9-]+|nvidia-[a-z0-9-]+|triton|uv)==.*/--no-emit-package \1/p' $(LOCK))
HASHED = $(COMPILE) --no-header --generate-hashes --constraints $(LOCK) $(LEFT_OUT)
# The hash of torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, which is in torch's own index and not in PyPI.
TORCH_CPU := 6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
export PIP_NO_CACHE_DIR := 1
# The other environments are installed by uv, in a tenth of pip's time. They hold copies of the cached files: one of them
# changes Flower's.
export UV_CACHE_DIR := $(CURDIR)/$(VENV)/uv-cache
export UV_LINK_MODE := copy
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
INSTALL := $(BIN)/uv pip install --quiet --system-certs --python
# Overrides an environment that forbids compiled files: without them, each lane and worker of pytest rewrites the assertions
# of all tests, and each process that a test starts compiles the app again.
export PYTHONDONTWRITEBYTECODE :=
# Sphinx finds the library under its name, and notebooks find `cohort`. A missing reference is a warning, and so an error.
SITE = PYTHONPATH=$(CURDIR)/build/docs/library PATH="$(CURDIR)/$(BIN):$$PATH" \
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going
# $(call tested_twice,NAME,MARKERS,OPTIONS OF THE FIRST RUN): on a busy machine, real processes may be later than a test
# waits. So the tests that fail run once more, alone; the target fails if one of them fails again. Both runs are printed.
CACHED = $(BIN)/python -m pytest -o cache_dir=.pytest_cache/$(1) $(2)
tested_twice = $(CACHED) $(3) || { [ $$? -eq 1 ] && echo "--- $(1): the tests that failed run once more, alone" && \
	$(CACHED) --last-failed --last-failed-no-failures none --maxfail 1; }

.PHONY: install run test test-network test-fast test-slow test-slow-network test-slow-others test-simulation test-newest-flower test-flowers test-oldest-flower test-devices-of-before test-pythons test-docker test-arm64 test-arm64-torch test-docker-arm64 test-browser test-postgres docs test-docs nemesis results results-check reference tree lint format lock dist wheels clean

install: $(VENV)/.demo            ## the packages that `make run` needs

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Cohort needs Python 3.11 or newer; name the interpreter: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml $(LOCK) | $(VENV)/bin/python
	@echo "installing into $(VENV); this takes a minute or two"
	$(BIN)/pip install --quiet --constraint $(LOCK) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(LOCK) | $(VENV)/bin/python
	@echo "installing into $(VENV); this takes a minute or two"
	$(BIN)/pip install --quiet --constraint $(LOCK) --editable '.[demo,torch,optim,dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.simulation: pyproject.toml $(LOCK) | $(VENV)/.dev
	$(INSTALL) $(VENV) --constraint $(LOCK) --editable '.[simulation]'
	@touch $@

$(VENV)/.docs: pyproject.toml $(LOCK) | $(VENV)/.dev
	$(INSTALL) $(VENV) --constraint $(LOCK) --editable '.[docs]'
	@touch $@

run: $(VENV)/.demo                ## a federation of processes on this machine
	$(BIN)/cohort up $(UP)

# Tests with a network run one after another and often wait, so the other tests run beside them: $(BESIDE) ONE OTHER
BESIDE = $(MAKE) --no-print-directory -j 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

test: $(VENV)/.dev                ## all tests except those of the targets below
	@$(BESIDE) test-network test-fast

test-network: $(VENV)/.dev        ## of these, the tests with a network
	$(call tested_twice,network,-m "network and not slow and not simulation and not docker and not arm64 and not newest and not oldest and not browser and not docs")

test-fast: $(VENV)/.dev           ## the others
	$(call tested_twice,fast,-m "not network and not slow and not simulation and not docker and not arm64 and not newest and not oldest and not browser and not docs",-n 2)

test-slow: $(VENV)/.dev           ## minutes each: figures of the papers, killed processes, many fault histories
	@$(BESIDE) test-slow-network test-slow-others

test-slow-network: $(VENV)/.dev   ## of these, the tests with a network
	$(call tested_twice,slow-network,-m "slow and network",-n 2 --dist loadfile)

test-slow-others: $(VENV)/.dev    ## the others
	$(call tested_twice,slow-others,-m "slow and not network and not arm64",-n 2)

test-simulation: $(VENV)/.simulation    ## Flower's own simulation; installs Ray
	$(call tested_twice,simulation,-m simulation)

test-newest-flower: $(NEWEST)/.installed    ## the library alone, on the newest Flower that installs
	$(INSTALL) $(NEWEST) --reinstall --no-deps ./strategies
	$(BIN)/uv pip list --python $(NEWEST) 2>/dev/null | grep -E '^(flwr|numpy|pydantic|ray) '
	$(NEWEST)/bin/python -m pytest -m newest tests/packaging/test_newest_flower.py tests/packaging/test_templates.py
	@if [ "$$($(NEWEST)/bin/$(PACKAGES))" = "$$($(BIN)/$(PACKAGES))" ]; then \
	  echo "the library's tests left out: make test runs them with the same Python and packages"; else \
	  $(NEWEST)/bin/python -m pytest -n 2 --hypothesis-profile few -m "not slow and not network" $(LIBRARY_TESTS); fi
PACKAGES := python -c "import sys; from importlib.metadata import version as v; print(sys.version, *map(v, ('flwr', 'numpy')))"

# Nothing is pinned here: uv falls back to an older Flower if a dependency of the newest is missing on the index.
$(NEWEST)/.installed: strategies/pyproject.toml Makefile | $(VENV)/.dev
	$(NEWEST_PYTHON) -m venv --clear --without-pip $(NEWEST)
	$(INSTALL) $(NEWEST) 'flwr[simulation]>=1.40' './strategies[optim]' pytest pytest-xdist hypothesis scikit-learn $(NEWEST_TORCH)
	@touch $@

# Each lane has an environment of its own, in which uv first installs the pinned Flower and then another.
test-flowers:                     ## the app on older Flowers, and on one without gRPC
	@$(BESIDE) $(OLDER_FLOWERS:%=test-flower-%) test-flower-rehearsal test-oldest-flower test-devices-of-before

test-flower-%: .venv-flower-%/.installed
	.venv-flower-$*/bin/$(call contract,$*) || .venv-flower-$*/bin/$(call contract,$*) $(AGAIN)

contract = python -m deploy.flower.versions -q -o cache_dir=.pytest_cache/flower-$(1)
AGAIN := --last-failed --last-failed-no-failures none --maxfail 1

.venv-flower-%/.installed: pyproject.toml $(LOCK) tests/support/flower_without_grpc.py Makefile | $(VENV)/.dev
	$(PYTHON) -m venv --clear --without-pip .venv-flower-$*
	$(INSTALL) .venv-flower-$* --constraint $(LOCK) --editable '.[demo]' pytest hypothesis
	$(if $(filter rehearsal,$*),.venv-flower-$*/bin/python tests/support/flower_without_grpc.py,$(INSTALL) .venv-flower-$* flwr==$*)
	@touch $@
.PRECIOUS: .venv-flower-%/.installed

test-oldest-flower: $(OLDEST)/.installed    ## the library's code for Flower, on the oldest that the library supports
	$(OLDEST)/bin/python -m pytest -q --hypothesis-profile few -m "not slow and not network" tests/strategies/flower tests/strategies/test_strategy.py

$(OLDEST)/.installed: strategies/pyproject.toml Makefile | $(VENV)/.dev
	$(PYTHON) -m venv --clear --without-pip $(OLDEST)
	$(INSTALL) $(OLDEST) flwr==1.39.0 ./strategies pytest hypothesis scikit-learn safetensors
	@touch $@

test-devices-of-before: $(OLDEST)/.installed $(VENV)/.dev    ## devices and a server's folder of Flower 1.39
	$(call tested_twice,before,-m oldest tests/federation/test_devices_of_before.py)

test-pythons:                     ## the library on Python 3.12 and 3.13, where this machine has them
	@for version in 3.12 3.13; do \
	  for python in python$$version ~/.pyenv/versions/$$version.*/bin/python none; do \
	    if $$python -c 'import venv' 2>/dev/null; then break; fi; \
	  done; \
	  if [ $$python = none ]; then echo "Python $$version left out: no interpreter on this machine"; \
	  else $(MAKE) test-newest-flower NEWEST=.venv-$$version NEWEST_PYTHON=$$python || exit 1; fi; \
	done

test-arm64: $(VENV)/.dev          ## a device on arm64 under emulation; needs root and a Debian (CONTRIBUTING.md)
	$(call tested_twice,arm64,-m "arm64 and not docker and not slow")

test-arm64-torch: $(VENV)/.dev    ## the same device trains a task in torch; may fail under emulation (CONTRIBUTING.md)
	$(BIN)/python -m pytest -m "arm64 and not docker and slow"

test-docker-arm64: $(VENV)/.dev   ## the image of clients for arm64; needs that Debian, and a Docker engine with buildx
	$(BIN)/python -m pytest -m "docker and arm64"

test-postgres: export COHORT_TEST_DATABASE := postgres
test-postgres: $(VENV)/.dev       ## the tests of the Fleet API with PostgreSQL instead of SQLite; needs PostgreSQL
	$(call tested_twice,postgres,-m "network and not slow" tests/deploy/fleet)

test-browser: $(VENV)/.dev        ## the live page in a browser; needs Debian's chromium and chromium-driver
	$(INSTALL) $(VENV) --constraint $(LOCK) --editable '.[browser]'
	$(call tested_twice,browser,-m browser)

nemesis: $(VENV)/.dev             ## an hour of faults on real processes; SEED=N replays a schedule, MINUTES=M is shorter
	$(BIN)/python -m tests.nemesis $(if $(SEED),--seed $(SEED)) --minutes $(MINUTES) --engine $(ENGINE) $(if $(BOUND),--bound $(BOUND))

# The notebooks run again if they have changed; otherwise their outputs come from a cache. After a failure all pages are
# read again, since Sphinx warns of a page only when it reads it.
docs: $(VENV)/.docs               ## the documentation site, into build/docs/html; a warning is an error
	@mkdir -p build/docs/library && ln -sfn ../../../strategies build/docs/library/flwr_cohort
	$(SITE) -c docs -d build/docs/pages . build/docs/html || { rm -rf build/docs/pages; exit 1; }

test-docs: $(VENV)/.docs          ## the site from nothing: all notebooks run, nothing comes from another host
	rm -rf build/docs
	$(MAKE) docs
	$(BIN)/python -m pytest -m docs tests/test_site.py

test-docker: $(VENV)/.dev         ## the containers; needs a Docker engine
	$(call tested_twice,docker,-m "docker and not arm64")

results: $(VENV)/.dev             ## docs/results.md and its pages, from the data files in results/
	$(BIN)/cohort bench results --write

# SAMPLE=N repeats the sample of seeds that a check printed.
results-check: $(VENV)/.dev       ## whether pages, sources and a sample of seeds fit the data files
	COHORT_DATA=$${COHORT_DATA:-$$([ ! -d ../shared/data ] || echo ../shared/data)} \
	  $(BIN)/cohort bench results --check $(if $(SAMPLE),--sample $(SAMPLE))

reference: $(VENV)/.dev           ## docs/reference/, from the code: options, settings, fields, metrics, selectors
	$(BIN)/python docs/extensions/reference.py

tree: $(VENV)/bin/python          ## all files, each with its first sentence
	@$(BIN)/python docs/extensions/tree.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(VENV)/.dev                ## after a change to the dependencies of the app or the library
	$(COMPILE) $(LOCKED:%=--extra %) pyproject.toml strategies/pyproject.toml -o $(LOCK)
	$(HASHED) pyproject.toml -o $(IMAGE_LOCKS)/client.txt
	printf 'matplotlib\ncvxpy\ntensorboardX\npsycopg[binary]\n' | $(HASHED) - pyproject.toml -o $(IMAGE_LOCKS)/server.txt
	echo scikit-learn | $(HASHED) --no-deps - -o $(IMAGE_LOCKS)/digits.txt
	echo torch | $(HASHED) - -o $(IMAGE_LOCKS)/torch.txt
	sed -i -e '/$(TORCH_CPU)/d' -e '/^torch==/a\    --hash=sha256:$(TORCH_CPU) \\' $(IMAGE_LOCKS)/torch.txt

dist: $(VENV)/.dev                ## the library's wheel and sdist, as the package index takes them
	rm -rf dist
	$(BIN)/python -m build --outdir dist strategies
	$(BIN)/python -m twine check --strict dist/*

# Raspberry Pi OS 12 and 13 (Debian 12 and 13), 64-bit: Python and the newest manylinux tag of each.
wheels: $(VENV)/.dev              ## asks the package index for aarch64 wheels of all dependencies of a device
	$(BIN)/uv pip compile $(WHEELS) --python-version 3.11 --python-platform aarch64-manylinux_2_36 pyproject.toml
	$(BIN)/uv pip compile $(WHEELS) --python-version 3.13 --python-platform aarch64-manylinux_2_40 pyproject.toml

clean:
	rm -rf .venv* runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
