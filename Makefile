# Every target does its own set-up: Python 3.10 or later with venv, and make, are all that must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Without bytecode on disk, each process of `make test` would compile the plugins of pytest again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test quick services exhaustive bench lint prepare collect docs clean

help:  ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## Run the demo: real flights, many queries, one stream
	@$(BIN)/millpond demo

test: lint prepare  ## Lint, check types, run every test, four files at a time
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder

quick: $(READY)  ## Test what the uncommitted change reaches, for about a minute
	$(BIN)/python tests/quick.py

services: $(READY)  ## Fetch jars for tests: of Kafka, of Spark's connector to it, of HDFS, and of an S3 server
	@$(BIN)/python -m kit.servers.kafka_server --fetch >/dev/null
	@$(BIN)/python -m kit.servers.hdfs_server
	@$(BIN)/python -m kit.servers.s3_proxy

exhaustive: $(READY)  ## Every fault at every occurrence, and 40 times the random inputs, for hours
	$(BIN)/pytest -m exhaustive
	MILLPOND_EXAMPLES=40 $(BIN)/pytest tests/unit tests/property tests/simulation
	MILLPOND_GOLDEN=check $(BIN)/pytest $(patsubst tests/golden/batch_answers/%.json,tests/spark/%.py,$(wildcard tests/golden/batch_answers/*.json))

bench: $(READY)  ## Run the canonical benchmark
	$(BIN)/python benchmarks/canonical.py

docs: $(READY)  ## Write the documentation as a site to build/docs/site
	$(BIN)/python docs/site/build.py

lint: $(READY)  ## Lint and check types
	$(BIN)/ruff check .
	$(BIN)/mypy

prepare: $(READY)
	@$(BIN)/millpond prepare

# Otherwise each of the processes of `make test` would compile all tests of a fresh clone.
collect: $(READY)
	@$(BIN)/pytest --collect-only -qq >/dev/null

clean:  ## Remove the environment and every cache
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv downloads and unpacks at once; its cache would keep 4 GB of PySpark. It does not read the settings of pip, so pip is
# tried where uv fails. Modules are not compiled: most of them are never imported.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "Millpond needs Python 3.10 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1)." \
	       "Name another: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) (once; a few minutes on a slow line)" >&2
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --no-cache --python $(BIN)/python -e '.[demo,test]' || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[demo,test]'
	@touch $@
