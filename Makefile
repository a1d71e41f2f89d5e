# Everything a developer types. `make help` lists it.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tools of one target each; they are no part of the environment that `make setup` builds.
DOCS_TOOLS := build/tools-docs
RELEASE_TOOLS := build/tools-release
INSTALL := -m pip install --quiet --disable-pip-version-check --require-hashes -r
WORLDS := log store journal uplink metadata cluster
BENCHMARKS := log journal uplink fleet metadata link cluster failover idle client doors catchup pipeline freshness
LOCKED := $(patsubst %.in,%.txt,$(filter-out requirements/build.in,$(wildcard requirements/*.in)))
COMPILE := --quiet --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 --universal
COVERED := tests/core tests/storage tests/blocks

.PHONY: help setup demo test test-all lint format coverage sim bench chaos fuzz docs changelog dist proto lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## Build .venv from pinned, hashed requirements

$(STAMP): requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) requirements/dev.txt
	requirements/find-java || $(BIN)/python $(INSTALL) requirements/jre.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## Boats to tables on this machine: cuts, kills, a pipeline, every frame compared
	$(BIN)/tidelog demo

test: setup lint ## Lint, types, layers and every fast test: what CI runs
	$(BIN)/python -m pytest -m "not slow" -n 3 --dist loadfile

test-all: setup lint ## The same plus the slow lanes (2,000 crash seeds, every byte cut, fuzzing)
	$(BIN)/python -m pytest

lint: setup ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup ## Let ruff lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: setup ## Which lines and branches of core, storage and blocks their own tests run; fails below the floor
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -m "not slow" -n 2 --dist loadfile $(COVERED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

sim: setup ## Log, store, journal, uplink, metadata and whole clusters through 2,000 seeds of faults each
	for world in $(WORLDS); do $(BIN)/tidelog sim $$world --seeds 2000 || exit 1; done
	$(BIN)/tidelog sim cluster --transport nats --seeds 2000

bench: setup ## Every benchmark, as JSON
	for benchmark in $(BENCHMARKS); do $(BIN)/tidelog bench $$benchmark --json || exit 1; done

chaos: setup ## Kills, pauses, cuts and full disks on three clusters of real processes, five minutes each
	TIDELOG_CHAOS_S=600 $(BIN)/python -m pytest -s tests/cluster/test_channel_chaos.py -k minutes

fuzz: setup ## Coverage-guided fuzzing of every decoder, a minute each
	$(BIN)/python -m tests.fuzz.run --seconds 60

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(DOCS_TOOLS)/.installed ## Build the site of the docs into build/site; a broken link fails
	$(DOCS_TOOLS)/bin/mkdocs build --strict --quiet
	@echo "open build/site/index.html, or for the search too: python3 -m http.server -d build/site"

changelog: $(RELEASE_TOOLS)/.installed ## Move the files of changes/ into CHANGELOG.md, under the version in the package
	$(RELEASE_TOOLS)/bin/towncrier build --yes --version "$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/tidelog/__init__.py)"

dist: $(RELEASE_TOOLS)/.installed ## Build the wheel and the source archive; install the wheel elsewhere and run it
	rm -rf dist build/lib build/wheel-test
	$(RELEASE_TOOLS)/bin/python -m build --no-isolation --outdir dist .
	$(PYTHON) -m venv build/wheel-test
	build/wheel-test/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd build/wheel-test && bin/tidelog --version
	rm -rf build/wheel-test

$(DOCS_TOOLS)/.installed: requirements/docs.txt
	$(PYTHON) -m venv --clear $(DOCS_TOOLS)
	$(DOCS_TOOLS)/bin/python $(INSTALL) requirements/docs.txt
	@touch $@

$(RELEASE_TOOLS)/.installed: requirements/release.txt
	$(PYTHON) -m venv --clear $(RELEASE_TOOLS)
	$(RELEASE_TOOLS)/bin/python $(INSTALL) requirements/release.txt
	@touch $@

proto: setup ## Generate the Python of the wire messages from their .proto files
	cd src/tidelog/codecs/proto && ../../../../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. *.proto

lock: ## Refresh requirements/*.txt from pyproject.toml and requirements/*.in
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet uv
	$(VENV)-lock/bin/uv pip compile $(COMPILE) --extra dev --extra spark --extra iceberg --extra nats \
	    pyproject.toml requirements/build.in -o requirements/dev.txt
	for locked in $(LOCKED); do $(VENV)-lock/bin/uv pip compile $(COMPILE) $${locked%.txt}.in -o $$locked || exit 1; done
	rm -rf $(VENV)-lock

clean: ## Remove what setup and the other targets made
	rm -rf $(VENV) build dist .coverage .coverage.* src/*.egg-info
