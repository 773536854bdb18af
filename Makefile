# Everything runs in .venv, made once from requirements.lock. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
DOCS := .venv-docs
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
PYTEST := $(VENV)/bin/python -m pytest
BIOME := 2.6.7

.PHONY: help setup demo test lint lint-js test-slow test-faults test-browser test-deploy test-wheel test-lowest test-real
.PHONY: test-cluster bench defaults docs clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 | \2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: $(VENV)/.ready  ## make the virtual environment from requirements.lock

# torch goes first and alone, so that the build of it the machine offers (CPU or CUDA) is settled before the rest.
$(VENV)/.ready: requirements.lock pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q "$$(grep -m 1 '^torch==' requirements.lock)"
	$(PIP) install -q -r requirements.lock
	$(PIP) install -q --no-deps --no-build-isolation -e .
	touch $@

demo: setup  ## compare algorithms on a small problem, in under a minute
	$(VENV)/bin/python -m undrift demo
	@command -v undrift > /dev/null || echo "undrift is in $(VENV)/bin: source $(VENV)/bin/activate puts it on your PATH."

lint: setup  ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

lint-js:  ## the script of the report's page, by biome; needs node
	npx --yes @biomejs/biome@$(BIOME) ci

test: lint  ## lint, types and the fast tests, on all cores
	$(PYTEST) -n auto

test-slow: setup  ## the slow tests
	$(PYTEST) -m "slow and not realdata and not browser"

test-faults: setup  ## hostile messages, damaged files, killed processes: all of what the fast tests take a share of
	$(PYTEST) -m faults -n auto

.PHONY: test-faults-deploy
test-faults-deploy: setup  ## of these, the two hundred trials of a deployment
	$(PYTEST) -m faults -n auto tests/deploy/test_sites.py tests/deploy/test_kills.py

test-browser: setup  ## the report in /usr/bin/chromium
	$(PYTEST) -m browser

test-deploy: setup  ## the deployment over the real engine, whose environment UNDRIFT_ENGINE names
	$(PYTEST) -m deploy

.PHONY: demo-deploy
demo-deploy: setup  ## a coordinator and four sites on this machine, over mutual TLS; some are killed on the way
	$(VENV)/bin/python -m undrift deploy engine
	rm -rf runs/deploy
	$(VENV)/bin/python -m undrift deploy demo --folder runs/deploy

test-real: setup  ## tests on the data sets in the folder UNDRIFT_DATA
	@test -n "$$UNDRIFT_DATA" || { echo "set UNDRIFT_DATA to the folder with the data sets"; exit 2; }
	$(PYTEST) -m realdata

test-wheel:  ## the wheel with every extra, unlocked, in an environment of its own
	tests/wheel.sh

test-lowest:  ## the fast tests with the lowest versions that pyproject.toml allows, in an environment of their own
	tests/lowest.sh

test-cluster: setup  ## the runtime ray, on clusters that are started on this machine
	$(PYTEST) -m cluster

bench: setup  ## the benchmarks (benchmarks/peers.py, which installs other libraries, is run by hand)
	set -e; for name in models floor crossdevice scale seeing; do $(VENV)/bin/python benchmarks/$$name.py; done

defaults: setup  ## every method with its defaults on four small settings (docs/defaults.md)
	@test -n "$$UNDRIFT_DATA" || { echo "set UNDRIFT_DATA to the folder with the data sets"; exit 2; }
	$(VENV)/bin/python docs/defaults.py

$(DOCS)/.ready: requirements-docs.lock
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check install -q -r requirements-docs.lock
	touch $@

docs: $(DOCS)/.ready  ## the documentation as a site, in ./site: opens from disk, fetches nothing; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --clean --quiet
	@echo "open site/index.html"

.PHONY: pictures
pictures: setup  ## the pictures of the README and the docs, from the running thing; needs Chromium and UNDRIFT_ENGINE
	$(VENV)/bin/python docs/pictures.py
	$(VENV)/bin/python tests/browser/pages.py docs/images

clean:  ## remove the environment and the caches
	rm -rf $(VENV) $(DOCS) .venv-lowest site build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
