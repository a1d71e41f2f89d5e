# Everything a developer types. `make help` lists it.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test test-all lint format sim bench chaos fuzz proto lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## Build .venv from pinned, hashed requirements

$(STAMP): requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	requirements/find-java || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/jre.txt
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

sim: setup ## Log, store, journal, uplink, metadata and whole clusters through 2,000 seeds of faults each
	$(BIN)/tidelog sim log --seeds 2000
	$(BIN)/tidelog sim store --seeds 2000
	$(BIN)/tidelog sim journal --seeds 2000
	$(BIN)/tidelog sim uplink --seeds 2000
	$(BIN)/tidelog sim metadata --seeds 2000
	$(BIN)/tidelog sim cluster --seeds 2000
	$(BIN)/tidelog sim cluster --transport nats --seeds 2000

bench: setup ## Every benchmark, as JSON
	$(BIN)/tidelog bench log --json
	$(BIN)/tidelog bench journal --json
	$(BIN)/tidelog bench uplink --json
	$(BIN)/tidelog bench fleet --json
	$(BIN)/tidelog bench metadata --json
	$(BIN)/tidelog bench link --json
	$(BIN)/tidelog bench cluster --json
	$(BIN)/tidelog bench failover --json
	$(BIN)/tidelog bench idle --json
	$(BIN)/tidelog bench client --json
	$(BIN)/tidelog bench doors --json
	$(BIN)/tidelog bench catchup --json
	$(BIN)/tidelog bench pipeline --json
	$(BIN)/tidelog bench freshness --json

chaos: setup ## Kills, pauses, cuts and full disks on three clusters of real processes, five minutes each
	TIDELOG_CHAOS_S=600 $(BIN)/python -m pytest -s tests/cluster/test_channel_chaos.py -k minutes

fuzz: setup ## Coverage-guided fuzzing of every decoder, a minute each
	$(BIN)/python -m tests.fuzz.run --seconds 60

proto: setup ## Write the Python of the wire messages anew from their .proto
	cd src/tidelog/codecs/proto && ../../../../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. *.proto

lock: ## Refresh requirements/*.txt from pyproject.toml
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet uv
	$(VENV)-lock/bin/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-annotate --no-header \
	    --python-version 3.11 --universal --extra dev --extra spark --extra iceberg --extra nats pyproject.toml requirements/build.in \
	    -o requirements/dev.txt
	$(VENV)-lock/bin/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-annotate --no-header \
	    --python-version 3.11 --universal requirements/jre.in -o requirements/jre.txt
	$(VENV)-lock/bin/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-annotate --no-header \
	    --python-version 3.11 --universal requirements/liftbridge-client.in -o requirements/liftbridge-client.txt
	rm -rf $(VENV)-lock

clean: ## Remove what setup made
	rm -rf $(VENV) build dist src/*.egg-info
