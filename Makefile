# gpushare. `make help` lists the verbs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
# Without the tests' compiled modules each of their processes compiles all of them anew: 6 s.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
TEST_LIMIT ?= 900
# Tests that run at once: half of them wait for something at any moment.
WORKERS ?= $(shell echo $$(($$(nproc) * 2)))
PARALLEL = timeout --signal=INT $(TEST_LIMIT) $(BIN)/pytest -n $(WORKERS) --dist loadgroup --drawn --durations=15

# What measures time, most of which it waits: a few at once, then those alone that the others, or other programs, kept from
# measuring anything. A failure is final (tests/support/timing/timed.py).
measured = timeout --signal=INT $(TEST_LIMIT) $(BIN)/pytest -n $(2) --dist loadgroup --no-loadscope-reorder --drawn --durations=10 $(1) && \
  timeout --signal=INT $(TEST_LIMIT) $(BIN)/pytest --not-run --durations=10 $(1)

# Everything that the wheel is made of: touched or gone, it is built and installed again. What has gone is missing in the
# list of names, which is written where it is another one than before; a directory is touched by whatever Python leaves there.
FILES := $(shell find native hooks gpushare packaging -path gpushare/_lib -prune -o -name __pycache__ -prune -o -type f -print | sort)
PRODUCT := $(FILES) build/.names CMakeLists.txt README.md scripts/reference.py
$(shell mkdir -p build && cmp -s build/.names <(printf '%s\n' $(FILES)) || printf '%s\n' $(FILES) >build/.names)

# All C that somebody writes.
WRITTEN_C = $(wildcard $(shell git ls-files -co --exclude-standard '*.c' '*.h' 2>/dev/null))

# The build trees of tests (tests/CMakeLists.txt) beside the wheel's own, and what sets each apart.
TREES := address thread fuzz arm
# Looked for when it is used: scripts/setup may install it in this very run, and $(wildcard) would not see that.
CLANG ?= $(notdir $(firstword $(shell ls /usr/bin/clang /usr/bin/clang-1[4-9] 2>/dev/null)))
TREE_address := -DGPUSHARE_SANITIZE="address;undefined"
TREE_thread := -DGPUSHARE_SANITIZE=thread
TREE_fuzz = -DGPUSHARE_FUZZ=ON -DGPUSHARE_WERROR=OFF -DCMAKE_C_COMPILER=$(CLANG) -DCMAKE_ASM_COMPILER=$(CLANG)
# No debugger runs there, and without what is for one it takes a third less.
TREE_arm := -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O2 -DNDEBUG" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_ASM_COMPILER=aarch64-linux-gnu-gcc

.PHONY: tree-test help manifests pages docs demo test test-slow test-frameworks test-ray test-release test-build check coverage bench pictures dist deb clean build dev sanitize check-c check-python $(TREES:%=tree-%)
help: ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/.ready build ## two containers share one device: live table and verdict
	@$(BIN)/gpushare demo

test: $(VENV)/.ready-test check test-build ## static checks, then every test but the soaks
	@echo "test: phase 2 of 3: all that does not measure time"
	$(PARALLEL) -m "not slow and not gpu and not timing"
	@echo "test: phase 3 of 3: what measures time"
	$(call measured,tests/interposer/timing -m "timing and not slow and not gpu",2)

test-slow: $(VENV)/.ready-test build test-build ## soaks, rows of large products, every property with more examples
	@echo "test-slow: phase 1 of 2: all that does not measure time"
	$(PARALLEL) -m "(slow or hypothesis) and not gpu and not timing" --hypothesis-profile=many
	@echo "test-slow: phase 2 of 2: what measures time"
	$(call measured,-m "timing and slow and not gpu",2)

test-frameworks: $(VENV)/.ready-test build build/frameworks/.ready ## unmodified PyTorch, Triton and numba on the simulated device
	@echo "running the frameworks' programs, bare and in a share: about 6 minutes"
	GPUSHARE_FRAMEWORKS_PYTHON=$(abspath build/frameworks/bin/python) $(BIN)/pytest --override-ini addopts="--import-mode=importlib -ra" \
	  --durations=10 tests/frameworks

test-ray: $(VENV)/.ready-test build build/ray/.ready ## real Ray on the simulated device
	$(BIN)/python -m pip wheel -qq --no-build-isolation --no-deps --wheel-dir build/ray/wheel .
	build/ray/bin/python -m pip install -qq --no-deps --force-reinstall build/ray/wheel/gpushare_node-*.whl
	GPUSHARE_RAY_PYTHON=$(abspath build/ray/bin/python) $(BIN)/pytest --override-ini addopts="--import-mode=importlib -ra" tests/ray

check: $(VENV)/.ready-test build tree-address tree-thread ## linters, types, import rules, warnings as errors, sanitizers
	@echo "check: linters, types, import rules, and the unit tests of C under the sanitizers"
	@$(MAKE) --jobs 2 --output-sync --no-print-directory check-c check-python sanitize

check-python: $(VENV)/.ready-test build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check.py
	$(BIN)/python scripts/manifests.py --check
	$(BIN)/python scripts/reference.py --check
	$(BIN)/python scripts/pages --check

check-c: $(VENV)/.ready-test build build/.tidy build/.format
	$(BIN)/python scripts/check_rooms.py build/wheel
	$(BIN)/python scripts/guard_programs.py --check

# What is new since it was looked at last.
build/.format: .clang-format $(WRITTEN_C) | $(VENV)/.ready-test
	@echo $(filter %.c %.h,$(if $(filter .clang-format,$?),$^,$?)) | xargs -P 2 -n 40 $(BIN)/clang-format --dry-run -Werror
	@touch $@

# Takes longer than all other checks: again only where a source, or what is looked for, has changed.
build/.tidy: .clang-tidy $(filter %.c %.h,$(PRODUCT)) | $(VENV)/.installed
	git ls-files -z 'native/*.c' 'hooks/*.c' ':!*.bpf.c' | xargs -0 -P 2 -n 16 $(BIN)/clang-tidy --quiet -p build/wheel 2>/dev/null
	@touch $@

coverage: $(VENV)/.ready-test test-build ## executed lines of the interposer under its tests, at least 95 %
	$(BIN)/python scripts/coverage

test-release: $(VENV)/.ready-test build ## the last commit's release: made twice, installed into bare Debian 12 and 13, upgraded
	@echo "the release of the last commit: this takes long; packages come from Debian's mirror and from PyPI"
	$(BIN)/pytest --override-ini addopts="--import-mode=importlib -ra" --durations=15 tests/release

test-build: tree-test $(TREES:%=tree-%) ## the programs that tests start: all their build trees

bench: $(VENV)/.ready-test build tree-test tree-arm ## the numbers: ratios within one run, written to bench/results
	$(BIN)/pytest bench

pictures: $(VENV)/.ready-test build ## the pictures of README and docs, of real runs; on a quiet machine
	$(BIN)/python scripts/pictures

dist: $(VENV)/.ready-dist build ## a release: sources, wheels and Debian packages for x86_64 and aarch64, SBOMs, SHA256SUMS
	$(BIN)/python scripts/dist

manifests: $(VENV)/.ready-test ## the manifests for Kubernetes, from the Helm chart
	$(BIN)/python scripts/manifests.py

pages: $(VENV)/.ready-test build ## pages of docs/ that are made from what the product says
	$(BIN)/python scripts/pages

docs: $(VENV)/.ready-test build ## the site, into build/site
	@echo "docs: pages that are made from the product are current?"
	@$(BIN)/python scripts/pages --check
	@echo "docs: building the site"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict
	@echo "docs: $$(find build/site -name '*.html' | wc -l) pages: open build/site/index.html"

deb: $(VENV)/.ready-deb build ## the Debian package of this architecture, into dist
	$(BIN)/python scripts/deb

.PHONY: reference
reference: ## docs/reference/cli.md, from the command line's own texts
	python3 scripts/reference.py

clean: ## remove everything that was built
	rm -rf build dist $(VENV) gpushare/_lib gpushare/_native*.so

# The wheel, installed as a user gets it; tests and the demo run the installed package.
build: $(VENV)/.installed
$(VENV)/.installed: $(VENV)/.ready $(PRODUCT)
	@scripts/follow "building gpushare and installing it into $(VENV)" \
	  $(BIN)/python -m pip install -v --no-build-isolation --no-deps --force-reinstall .
	@touch $@

# C changes without a wheel: artefacts into the source tree, used with PYTHONPATH=.
dev: $(VENV)/.ready
	cmake -S . -B build/dev -G Ninja -DPython3_EXECUTABLE=$(abspath $(BIN)/python) >/dev/null
	cmake --build build/dev
	cmake --install build/dev --prefix . >/dev/null

build/frameworks/.ready: pyproject.toml scripts/setup
	scripts/setup frameworks

build/ray/.ready: pyproject.toml scripts/setup
	scripts/setup ray

sanitize: tree-address tree-thread
	@for kind in address thread; do ctest --test-dir build/$$kind -j 2 --output-on-failure --timeout 120 | tail -4; done

# Most programs of tests are linked with what the wheel is made of, which is there already.
tree-test: $(VENV)/.ready-test build
	@grep -q '^GPUSHARE_TESTS:BOOL=ON' build/wheel/CMakeCache.txt || cmake -DGPUSHARE_TESTS=ON build/wheel >/dev/null
	@scripts/follow "building the programs of tests, build/wheel" cmake --build build/wheel --target tests

$(TREES:%=tree-%): tree-%: $(VENV)/.ready-test
	@[[ -e build/$*/build.ninja ]] || cmake -S . -B build/$* -G Ninja -DPython3_EXECUTABLE=$(abspath $(BIN)/python) \
	  -DGPUSHARE_TESTS=ON $(TREE_$*) >/dev/null
	@scripts/follow "building the programs of tests, build/$*" \
	  cmake --build build/$* --target tests $(if $(filter arm,$*),all)

$(VENV)/.ready: pyproject.toml scripts/setup
	scripts/setup build
$(VENV)/.ready-%: pyproject.toml scripts/setup
	scripts/setup $*
