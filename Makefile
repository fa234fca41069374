# Every target sets itself up first: .venv from the pinned requirements, Node.js and the CDK CLI. The second
# run finds it done. PYTHON chooses the Python that .venv is made of.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON ?= python3
TESTS ?= tests
ARGS ?=
# Test files run side by side on the cores there are; each process has an emulator and a Slurm of its own.
WORKERS ?= auto
side_by_side = -n $(WORKERS) --maxprocesses 4 --dist loadfile
# The CDK works on Node.js 20 and newer; which of them are still cared for is not its user's business here.
export JSII_SILENCE_WARNING_DEPRECATED_NODE_VERSION := 1
export JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION := 1
export JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION := 1
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
# Not exported: set-up itself must not run on the Python of a .venv that it may have to replace.
with = PATH="$(CURDIR)/.venv/bin:$$PATH"

# A variable as given to make itself: a PORT or NODE that happens to be in the environment means nothing here.
given = $(if $(findstring command line,$(origin $(2))),$(1) $($(2)))
# make demo FAULT=spot NODE=demo-2 SCHEDULER=process DIR=/tmp/planaria PORT=4600 ARGS=--json
options = $(call given,--fault,FAULT) $(call given,--node,NODE) $(call given,--scheduler,SCHEDULER) \
    $(call given,--dir,DIR) $(call given,--port,PORT) $(ARGS)
# make synth CLUSTER=recipes/clusters/mine.yaml
context = $(if $(findstring command line,$(origin CLUSTER)),-c cluster=$(CLUSTER)) $(ARGS)

.PHONY: demo test campaign check synth deploy clean help setup setup-cdk

demo: setup ## Watch a node break and the training job go on, on this machine (FAULT=, NODE=, SCHEDULER=, DIR=, PORT=)
	@$(with) planaria demo $(options)

test: setup ## Run all tests but the campaigns (TESTS=tests/core, ARGS="-k xid", WORKERS=0)
	@$(with) python -m pytest $(side_by_side) $(TESTS) $(ARGS)

# pytest ends with 5 when no test was chosen. That is a failure wherever a test carries the marker.
campaign: setup ## Run the long fault campaigns
	@if grep -rqE --include='test_*.py' 'mark\.campaign' tests; then \
	    $(with) python -m pytest $(side_by_side) -m campaign tests $(ARGS); \
	else \
	    echo 'campaign: no test carries the marker `campaign` yet, so there is nothing to run.'; \
	fi

check: setup ## Check style, types and the shape of the source
	@$(with) ruff check .
	@$(with) ruff format --check .
	@$(with) mypy
	@$(with) python -m pytest -q tests/test_shape.py

synth: setup-cdk ## Write the CloudFormation templates to cdk.out, without AWS (CLUSTER=, ARGS=)
	@$(with) node_modules/.bin/cdk synth --quiet --app 'python app.py' $(context)

deploy: setup-cdk ## Deploy to the AWS account of your credentials (CLUSTER=, ARGS="-c gameday=true")
	@$(with) node_modules/.bin/cdk deploy --all --app 'python app.py' $(context)

clean: ## Remove what set-up and runs made: .venv, node_modules, cdk.out, caches
	@rm -rf .venv node_modules cdk.out build dist planaria.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:
	@$(PYTHON) -m planaria.sandbox.install

setup-cdk:
	@$(PYTHON) -m planaria.sandbox.install --without-torch
