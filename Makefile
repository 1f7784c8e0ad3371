# gpushare. `make help` lists the verbs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
TEST_LIMIT ?= 1500
SLOW_LIMIT ?= 1200

.PHONY: help demo test test-slow check coverage bench dist clean build dev sanitize
help: ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/.ready build ## two containers share one device: live table and verdict
	@$(BIN)/gpushare demo

test: $(VENV)/.ready-test check ## static checks, then every test but the soaks
	timeout --signal=INT $(TEST_LIMIT) $(BIN)/pytest -m "not slow and not gpu"

test-slow: $(VENV)/.ready-test build ## the long soaks
	timeout --signal=INT $(SLOW_LIMIT) $(BIN)/pytest -m "slow and not gpu"

check: $(VENV)/.ready-test build sanitize ## linters, types, import rules, warnings as errors, sanitizers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	git ls-files -z '*.c' '*.h' | xargs -0 $(BIN)/clang-format --dry-run -Werror
	$(BIN)/python scripts/check.py

coverage: $(VENV)/.ready-test ## executed lines of the interposer under its tests, at least 95 %
	$(BIN)/python scripts/coverage

bench: $(VENV)/.ready-test build ## the numbers: ratios within one run, written to bench/results
	$(BIN)/pytest bench --benchmark-columns=median,min,max,stddev

dist: $(VENV)/.ready ## source distribution, and the wheel built from it
	$(BIN)/python -m pip install -qq build
	$(BIN)/python -m build --outdir dist

clean: ## remove everything that was built
	rm -rf build dist $(VENV) gpushare/_lib gpushare/_native*.so

# The wheel, installed as a user gets it; tests and the demo run the installed package.
build: $(VENV)/.ready
	@$(BIN)/python -m pip install -qq --no-build-isolation --no-deps --force-reinstall .

# C changes without a wheel: artefacts into the source tree, used with PYTHONPATH=. 
dev: $(VENV)/.ready
	cmake -S . -B build/dev -G Ninja -DPython3_EXECUTABLE=$(abspath $(BIN)/python) >/dev/null
	cmake --build build/dev
	cmake --install build/dev --prefix . >/dev/null

sanitize: $(VENV)/.ready
	@for kind in "address;undefined" thread; do \
	  dir=build/$${kind%%;*}; \
	  cmake -S . -B $$dir -G Ninja -DPython3_EXECUTABLE=$(abspath $(BIN)/python) -DGPUSHARE_SANITIZE="$$kind" >/dev/null; \
	  cmake --build $$dir >/dev/null; \
	  ctest --test-dir $$dir --output-on-failure --timeout 120 | tail -4; \
	done

$(VENV)/.ready: pyproject.toml scripts/setup
	scripts/setup build
$(VENV)/.ready-test: pyproject.toml scripts/setup
	scripts/setup test
