# Everything a stranger or a CI machine runs. `make help` lists it.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.run
DEV := .venv/.dev
COMPILED := .venv/.compiled
SECURE := .venv/.secure
SPEC_FOLDER := ../shared/spec
SECONDS ?= 600
# Tests start Python by the hundred: where it may not keep what it has compiled, each start compiles all again.
export PYTHONDONTWRITEBYTECODE :=
# Tests wait for processes that start, for leases and pauses, as much as they compute: three for each processor, which
# keep it busy. With more, those that need a moment of it wait longer for one than they may.
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
PROCESSES ?= $(shell echo $$((3 * $(PROCESSORS))))
PYTEST := $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder --max-worker-restart 1 --numprocesses
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--group build --extra demo --extra spark --custom-compile-command "make lock" --quiet

# Two at a time: the longest begins.
CHECKS := check-types check-security check-style check-generated

.PHONY: $(CHECKS) advisories bounds cli-docs docs functions fuzz guesses help compatibility demo test test-all soak lint format machinery sample spec lock bench services clean

help: ## Say what there is.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(if $(MOUNT),$(DEV),$(RUN)) ## Start a server, load 17,472 films, search them through the stock lancedb client, stop (KEEP=1: leave its console to look around; MOUNT=hive: below a Hive Metastore).
	$(BIN)/python examples/$(or $(MOUNT),films).py$(if $(KEEP), --keep)

test: $(DEV) services lint ## Prepare all, lint, then test every behaviour, within minutes (PYTEST_ARGS="-k name").
	$(PYTEST) $(PROCESSES) -m "not extended" $(PYTEST_ARGS)

test-all: $(DEV) services lint ## The same with what multiplies it: PostgreSQL and S3, clusters, kills, fuzzing at length.
	@bash scripts/install_services.sh zsh fish
	$(PYTEST) $(PROCESSES) $(PYTEST_ARGS)

lint: $(DEV) ## Style, types, direction of imports, and whether generated files are current.
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target $(CHECKS) $(COMPILED)

check-types:
	$(BIN)/mypy

check-security: $(SECURE)

# Bandit takes half a minute for all of src: it reads what has changed since it last passed.
$(SECURE): $(DEV) pyproject.toml $(shell find src -name '*.py')
	$(BIN)/bandit -q -c pyproject.toml $(if $(filter-out %.py,$?),-r src,$?)
	@touch $@

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

check-generated:
	$(BIN)/python scripts/make_models.py --check
	$(BIN)/python scripts/make_cli_docs.py --check
	$(BIN)/python scripts/make_bounds.py --check
	$(BIN)/python scripts/make_machinery.py --check
	$(BIN)/python scripts/make_guesses.py --check
	$(BIN)/python scripts/make_functions.py --check
	$(BIN)/python scripts/make_sample.py --check
	@if [ -d $(SPEC_FOLDER) ]; then $(BIN)/python scripts/make_spec.py --check $(SPEC_FOLDER); fi

format: $(DEV) ## Put all code into its one form.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

spec: $(DEV) ## Write the models again from the specification (its facts first, where SPEC_FOLDER is there).
	@if [ -d $(SPEC_FOLDER) ]; then $(BIN)/python scripts/make_spec.py $(SPEC_FOLDER); fi
	$(BIN)/python scripts/make_models.py

cli-docs: $(DEV) ## Write the reference of docs/cli.md from the commands' own help.
	$(BIN)/python scripts/make_cli_docs.py

bounds: $(DEV) ## Write docs/bounds.md from the constants that hold them.
	$(BIN)/python scripts/make_bounds.py

machinery: $(DEV) ## Write the table of caches, queues, pools and child processes in docs/architecture.md from the code.
	$(BIN)/python scripts/make_machinery.py

guesses: $(DEV) ## Write the table of docs/python.md of the names that people guess from other libraries, from the code.
	$(BIN)/python scripts/make_guesses.py

functions: $(DEV) ## Write the table of docs/functions.md of the ready-made functions, from their registry.
	$(BIN)/python scripts/make_functions.py

sample: $(DEV) ## Compute the embeddings of the bundled sample again, from its films and the texts of its searches.
	$(BIN)/python scripts/make_sample.py

docs: $(DEV) ## Build the site of README.md and docs/ into build/site; a broken link fails it.
	$(BIN)/python scripts/make_site.py

lock: $(DEV) ## Resolve the dependencies again, changing only what must change (LOCK_ARGS=--upgrade for all).
	$(BIN)/$(LOCK) $(LOCK_ARGS) --group dev --output-file requirements-dev.lock
	$(BIN)/$(LOCK) --constraint requirements-dev.lock --output-file requirements.lock
	@if grep -n '://' requirements.lock requirements-dev.lock; then echo "A lock file names a host."; exit 1; fi

advisories: $(DEV) ## Ask the public advisories about every locked package (needs the network).
	$(BIN)/uv tool run pip-audit --requirement requirements-dev.lock --require-hashes --disable-pip

soak: $(DEV) services ## Kill servers under 16 writers for a while, and judge what is left (SECONDS=600 SEED=7; POWER=1: by losses of power; ENDURANCE=1: no kills, what a server takes).
	$(BIN)/python -m $(if $(POWER),tests.power,tests.faults.soak) $(if $(ENDURANCE),--endurance --spark) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

fuzz: $(DEV) ## Fuzz the parsers of callers' bytes, guided by coverage, and keep what is found (SECONDS=1800 of processor time; TARGETS="sql_filter http_framing").
	$(BIN)/python -m tests.fuzz.parsers $(if $(filter command line environment,$(origin SECONDS)),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(TARGETS)

bench: $(DEV) ## Measure against the reference server; the table goes to bench/RESULTS.md.
	$(BIN)/python -m bench

compatibility: $(DEV) ## Call every operation through every stock client; the table goes to docs/compatibility.md.
	$(BIN)/python -m tests.conformance.compatibility

services: ## Install what tests start and pip cannot bring (PostgreSQL, Java, Chromium), where it is missing.
	@bash scripts/install_services.sh postgresql java
	@bash scripts/install_services.sh chromium || echo "Tests of the console in a browser will be skipped."
	@bash scripts/install_services.sh spin || echo "Tests of the models in models/ will be skipped."

clean: ## Remove the environment and all caches.
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: what runs (with the demo), and what develops on top. Done again only when its lock changes.
$(RUN): requirements.lock pyproject.toml scripts/install_packages.sh
	@bash scripts/install_packages.sh $(PYTHON) requirements.lock
	@touch $@

$(DEV): requirements-dev.lock pyproject.toml scripts/install_packages.sh
	@bash scripts/install_packages.sh $(PYTHON) requirements-dev.lock
	@touch $@ $(RUN)

# What all tests need and is made once, before the processes that run them begin together: the archive of Spark's classes,
# which takes a minute of a processor that they would wait for, and their imports, compiled.
$(COMPILED): $(DEV)
	@if command -v java >/dev/null; then $(BIN)/python -m tests.services.jvm; fi
	@said=$$($(BIN)/python -m pytest --collect-only --quiet --no-header 2>&1) || { tail -n 40 <<<"$$said"; exit 1; }
	@touch $@
