# SPDX-License-Identifier: Apache-2.0
# Targets install their prerequisites, on Debian 12 or Ubuntu 22.04 and later, as root or with sudo.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The editable install links the plugin directories, so a new one requires a new environment.
READY := $(VENV)/.ready-$(words $(wildcard collection/plugins/*))
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
export PATH := $(CURDIR)/$(BIN):$(PATH)

# tox finds pyenv's Pythons on PATH.
empty :=
PYENV := $(wildcard $(shell pyenv root 2>/dev/null)/versions/*/bin)
TOX_PATH := $(PATH):$(subst $(empty) $(empty),:,$(PYENV))

.PHONY: help venv lab lab-down test test-all lint unit unit-all system main-path e2e thorough sanity bench bundle docs concern picture clean

help: ## List targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

venv: $(READY)

$(READY): pyproject.toml hatch_build.py
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq -y --no-install-recommends python3-venv; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

lab: venv ## Create a Slurm cluster in local containers with on_create.sh
	$(SUDO) NO_AUTOFS=$(NO_AUTOFS) $(BIN)/hyperpod-lifecycle lab up

lab-down: venv ## Remove the lab's containers
	$(SUDO) $(BIN)/hyperpod-lifecycle lab down

test: lint unit system main-path ## Run the pre-merge tests (no per-concern clusters)

test-all: lint unit-all system e2e sanity ## Run every test

lint: venv ## Run ruff, mypy, ansible-lint and shellcheck
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests/e2e
	ANSIBLE_HOME=.ansible $(BIN)/ansible-lint
	@command -v shellcheck >/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq -y shellcheck; }
	shellcheck on_create.sh $$(grep -rlE '^#!/bin/(ba)?sh' --exclude='*.py' lab) collection/roles/*/files/*.sh .ci/run

unit: venv ## Run the tests without root, on this environment's Python
	$(BIN)/pytest --numprocesses 2 --dist loadfile

unit-all: venv ## Run the tests without root, on each installed Python (3.10 to 3.13)
	PATH="$(TOX_PATH)" $(BIN)/tox run-parallel --parallel 4

system: venv ## Run the tests that need root but no lab
	$(SUDO) $(BIN)/pytest tests/system

# The tests of a file share one cluster (loadfile). Two files run in parallel.
# NO_AUTOFS=1 simulates a kernel without autofs on every node, otherwise on one group of two of the clusters.
E2E := $(SUDO) NO_AUTOFS=$(NO_AUTOFS) $(BIN)/pytest --numprocesses 2 --dist loadfile

main-path: venv ## Test a complete cluster on both Debian releases, and run molecule
	$(E2E) tests/e2e/test_cluster.py tests/e2e/test_bare_node.py

e2e: venv ## Run all tests on clusters, including per-concern ones
	$(E2E) tests/e2e

thorough: venv ## Run the long versions of these tests; writes bench/thorough.txt
	$(SUDO) $(BIN)/python bench/thorough.py

sanity: venv ## Check the collection with ansible-test and galaxy-importer
	$(BIN)/python dev/sanity.py

bench: venv ## Reproduce the README's benchmarks
	$(SUDO) $(BIN)/python bench/run.py

# Directory with your inventory, users and provisioning_parameters.json.
SITE := .

bundle: venv ## Build dist/upload, the folder to upload to S3; SITE=DIR has your files
	$(BIN)/hyperpod-lifecycle bundle dist/upload --site $(SITE)

docs: venv ## Generate settings tables, role READMEs and docs/modules.md
	$(BIN)/python dev/generate_docs.py

concern: venv ## Create the skeleton of a concern: make concern NAME=motd
	$(BIN)/python dev/new_concern.py $(NAME)
	$(BIN)/python dev/generate_docs.py

picture: venv ## Record docs/lab.svg
	$(SUDO) $(BIN)/python dev/record_lab.py

clean: ## Remove build artifacts and environments
	rm -rf $(VENV) .tox .collections build dist
