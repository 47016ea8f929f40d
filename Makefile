# SPDX-License-Identifier: Apache-2.0
# Each target installs what it needs, on Debian 12 or Ubuntu 22.04 and later, as root or with sudo.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Which plugin folders there are is read when the environment is made.
READY := $(VENV)/.ready-$(words $(wildcard collection/plugins/*))
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Where pyenv has other Pythons, tox finds them on PATH.
empty :=
PYENV := $(wildcard $(shell pyenv root 2>/dev/null)/versions/*/bin)
TOX_PATH := $(PATH):$(subst $(empty) $(empty),:,$(PYENV))

.PHONY: help venv lab lab-down test test-all lint unit system main-path e2e thorough sanity bench bundle docs concern picture clean

help: ## List targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

venv: $(READY)

$(READY): pyproject.toml hatch_build.py
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq -y --no-install-recommends python3-venv; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

lab: venv ## Set up a Slurm cluster in local containers, by on_create.sh itself
	$(SUDO) NO_AUTOFS=$(NO_AUTOFS) $(BIN)/hyperpod-lifecycle lab up

lab-down: venv ## Remove the lab's containers
	$(SUDO) $(BIN)/hyperpod-lifecycle lab down

test: lint unit system main-path ## Run the pre-merge tests (no per-concern clusters)

test-all: lint unit system e2e ## Run every test

lint: venv ## ruff, mypy, ansible-lint, shellcheck
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests/e2e
	ANSIBLE_HOME=.ansible $(BIN)/ansible-lint
	@command -v shellcheck >/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq -y shellcheck; }
	shellcheck on_create.sh $$(grep -rlE '^#!/bin/(ba)?sh' --exclude='*.py' lab) collection/roles/*/files/*.sh .ci/run

unit: venv ## What needs no root, on every Python from 3.10 to 3.13 that this machine has
	PATH=$(TOX_PATH) $(BIN)/tox run-parallel --parallel 4

system: venv ## What needs root: on_create.sh and homes in a throwaway copy of this machine, the bundle
	$(SUDO) $(BIN)/pytest tests/system

# A file shares one cluster, so its tests stay together. Containers are processes of this machine: one file per core.
# NO_AUTOFS=1: every node as on a kernel without autofs; otherwise one group of two of the clusters is.
E2E := $(SUDO) NO_AUTOFS=$(NO_AUTOFS) $(BIN)/pytest --numprocesses 2 --dist loadfile

main-path: venv ## From two files to a cluster that runs jobs, on both Debian releases, and molecule
	$(E2E) tests/e2e/test_cluster.py tests/e2e/test_bare_node.py

e2e: venv ## The same, and every concern on clusters of its own
	$(E2E) tests/e2e

thorough: venv ## The same, repeated, killed and waited for more; the result goes to bench/thorough.txt
	$(SUDO) $(BIN)/python bench/thorough.py

sanity: venv ## Ansible's own checks of the collection: ansible-test and galaxy-importer
	$(BIN)/python dev/sanity.py

bench: venv ## Reproduce the README's benchmarks
	$(SUDO) $(BIN)/python bench/run.py

# Your own folder, with inventory, users and provisioning_parameters.json.
SITE := .

bundle: venv ## The folder to upload to S3, in dist/upload; SITE=DIR takes your files from there
	$(BIN)/hyperpod-lifecycle bundle dist/upload --site $(SITE)

docs: venv ## Write the generated parts of the documentation
	$(BIN)/python dev/generate_docs.py

concern: venv ## Create the skeleton of a concern: make concern NAME=motd
	$(BIN)/python dev/new_concern.py $(NAME)
	$(BIN)/python dev/generate_docs.py

picture: venv ## Record docs/lab.svg
	$(SUDO) $(BIN)/python dev/record_lab.py

clean: ## Remove what was built
	rm -rf $(VENV) .tox .collections build dist
