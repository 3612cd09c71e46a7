# SPDX-License-Identifier: Apache-2.0
#
#   make demo     everything at once, on a simulated GPU where there is no real one
#   make demo-cluster  twenty simulated nodes, watched by gpulimit top
#   make test     all tests (PYTEST='-k quota' passes options on, JOBS=4 runs four files at once, JOBS=0 one test at a time)
#   make check    what CI runs: lint, test-k8s, manifest-tools, test
#   make test-k8s what runs against real parts of Kubernetes, which it builds once (tests/k8s/build_parts.sh)
#   make manifest-tools  Helm, kubectl and Kubernetes' schemas for the tests of deploy/ (tests/containers/get_tools.sh)
#   make fuzz     the fuzzers, C and HTTP, for FUZZ_SECONDS in all; what they learn is kept in .fuzz-corpus/
#   make lint     format, types, layers, wording, C warnings
#   make bench    accuracy and overhead, on a real card
#   make build    the package in place, in .venv
#   make wheel    source distribution, and the wheel for this machine, in dist/
#   make wheels   source distribution and wheels for x86-64 and aarch64, in dist/
#   make deb      the package for Debian 12, in dist/
#   make clean    remove what these made
#
# Quiet unless something fails, but for a line before each long step; V=1 shows everything.  Steps are skipped when
# nothing that they read changed.

PYTHON ?= python3
PYTEST ?=
JOBS ?= 2
V ?=
K8S_BUILD_S ?= 3600
MANIFEST_TOOLS_S ?= 600
FUZZ_SECONDS ?= 3600
FUZZ_CORPUS ?= $(CURDIR)/.fuzz-corpus

VENV := .venv
BIN := $(VENV)/bin
MACHINE := $(shell uname -m)
KEY := $(shell cat pyproject.toml setup.py | sha256sum | cut -c1-16)
BASE := $(VENV)/.base-$(KEY)
DEV := $(VENV)/.dev-$(KEY)
NATIVE := $(VENV)/.native-$(KEY)
C_SOURCES := $(wildcard csrc/* csrc/*/* csrc/sim/profiles/*) limiter/_native_build.py

# Runs a command with its output in a log, which is shown only when it fails.
ifeq ($(V),)
quietly = @mkdir -p build && { { $(2); } > build/$(1).log 2>&1 || { cat build/$(1).log; echo "make $(1): failed" >&2; exit 1; }; }
else
quietly = { $(2); }
endif
# Names a step that takes long, so that a first `make demo` is not silent while it builds.
announced = @echo "make: $(1)" >&2

# Everything below is one recipe after the other: make's own -j would only reorder the log.
.NOTPARALLEL:

demo: $(NATIVE)
	@$(BIN)/gpulimit demo

# Ends with top, or with an interrupt where there is no terminal for it to show anything on.
demo-cluster: $(NATIVE)
	$(call quietly,install-top,$(BIN)/python -c 'import textual' 2>/dev/null || $(BIN)/python -m pip install -q --no-build-isolation -e '.[top]')
	@bash deploy/demo-cluster $(BIN)/gpulimit $(DEMO_NODES)

# Files side by side, most tests wait more than they compute; then, one by one, those that must be alone
# (ALONE in tests/conftest.py). 5: no test of that kind was asked for.
test: $(NATIVE) $(DEV)
	@# First those that see all tenants of this machine, before others leave some behind.
	@$(BIN)/python -m pytest --alone=only $(PYTEST); alone=$$?; \
		[ $$alone -eq 0 ] || [ $$alone -eq 5 ] || exit $$alone; \
		$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --alone=no $(PYTEST); beside=$$?; \
		[ $$beside -ne 5 ] || exit $$alone; exit $$beside

# Everything that CI runs, once its packages are there. The steps stop at the first that fails.
check: lint test-k8s manifest-tools test

test-k8s: $(NATIVE) $(DEV)
	@# 3: not to be had here; 124: not in time. The tests then skip themselves.
	@timeout -k 10 $(K8S_BUILD_S) bash tests/k8s/build_parts.sh || { s=$$?; \
		[ $$s -ne 124 ] || echo "k8s parts: SKIPPED: not built within $(K8S_BUILD_S) s" >&2; [ $$s -eq 3 ] || [ $$s -eq 124 ]; }
	@GPULIMIT_TEST_K8S=1 $(BIN)/python -m pytest $(PYTEST) tests/k8s/test_real_*.py

# Six fuzzers in C, each built twice, and one of the HTTP calls, which gets two shares.
fuzz: $(NATIVE) $(DEV)
	@GPULIMIT_FUZZ_SECONDS=$$(( $(FUZZ_SECONDS) / 7 + 1 )) GPULIMIT_TEST_SEED=$$(date +%s) \
		$(BIN)/python -m pytest -q -s -rA tests/hostile/test_http_fuzzer.py
	@$(MAKE) -s -C tests/fuzz run SECONDS=$$(( $(FUZZ_SECONDS) / 14 + 1 )) KEPT=$(FUZZ_CORPUS)

manifest-tools: $(DEV)
	@# As above. Cut short, it begins anew the next time.
	@PYTHON=$(BIN)/python timeout -k 10 $(MANIFEST_TOOLS_S) bash tests/containers/get_tools.sh || { s=$$?; \
		[ $$s -ne 124 ] || echo "manifest tools: SKIPPED: not there within $(MANIFEST_TOOLS_S) s" >&2; \
		[ $$s -eq 3 ] || [ $$s -eq 124 ]; }

lint: $(NATIVE) $(DEV)
	$(call quietly,ruff,$(BIN)/ruff check . && $(BIN)/ruff format --check .)
	$(call quietly,mypy,$(BIN)/mypy)
	$(call quietly,imports,$(BIN)/lint-imports)
	$(call quietly,prose,$(BIN)/python -m release.prose)
	$(call quietly,reference,$(BIN)/python -m release.reference --check)
	$(call quietly,clang,! command -v clang-14 || { $(MAKE) -s -C csrc CC=clang-14 OUT=$(CURDIR)/build/clang/shim && \
		$(MAKE) -s -C csrc/path CC=clang-14 OUT=$(CURDIR)/build/clang/path && \
		$(MAKE) -s -C csrc/container CC=clang-14 OUT=$(CURDIR)/build/clang/container && \
		$(MAKE) -s -C csrc/sim CC=clang-14 OUT=$(CURDIR)/build/clang/sim; })
	@echo lint: ok

# On a real card only, with the Python that has PyTorch: make bench PYTHON=/opt/torch/bin/python3
bench:
	@$(PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || \
		{ echo "make bench: needs a real GPU, and PyTorch in $(PYTHON)" >&2; exit 1; }
	$(call quietly,shim,$(MAKE) -s -C csrc OUT=$(CURDIR)/build/shim)
	@$(PYTHON) bench/overhead.py --library build/shim/libgpulimit.so --out build/overhead.json
	@$(PYTHON) bench/share.py --library build/shim/libgpulimit.so --out build/share.json

build: $(NATIVE)

# The same bytes from the same sources and tools; SOURCE_DATE_EPOCH is the last commit's date unless it is set.
wheel: $(BASE)
	@rm -f dist/libgpulimit-*.tar.gz dist/libgpulimit-*_$(MACHINE).whl
	@$(BIN)/python -m release.wheels --arch $(MACHINE)

wheels: $(BASE)
	@rm -f dist/libgpulimit-*
	@$(BIN)/python -m release.wheels

# An environment made before may have the package under its old name, gpulimit.
# The first installs what running needs, the second what developing needs on top.
$(BASE): | $(VENV)/bin/python
	$(call announced,installing gpulimit into $(VENV); half a minute)
	$(call quietly,install,$(BIN)/python -m pip uninstall -q -y gpulimit && \
		$(BIN)/python -m pip install -q 'setuptools>=77' 'cffi>=1.16' && \
		$(BIN)/python -m pip install -q --no-build-isolation -e .)
	@rm -f $(VENV)/.base-* $(VENV)/.dev-* $(VENV)/.native-*
	@touch $@ $(NATIVE)

$(DEV): | $(BASE)
	$(call announced,installing the tools for tests and lint into $(VENV); a minute)
	$(call quietly,install-dev,$(BIN)/python -m pip install -q --no-build-isolation -e '.[dev]')
	@rm -f $(VENV)/.dev-*
	@touch $@ $(NATIVE)

$(NATIVE): $(C_SOURCES) | $(BASE)
	$(call announced,compiling the library and the simulated driver; about 20 s)
	$(call quietly,native,$(BIN)/python setup.py -q build_ext --inplace)
	@touch $@

$(VENV)/bin/python:
	$(call announced,making a Python environment in $(VENV))
	$(call quietly,venv,$(PYTHON) -m venv $(VENV))

clean:
	rm -rf $(VENV) build dist *.egg-info limiter/_lib limiter/_native*.so limiter/_native*.c
	find . -name __pycache__ -prune -exec rm -rf {} +

# For Debian 12, of this processor's wheel.
deb: $(DEV) wheel
	@$(BIN)/python -m release.deb dist/libgpulimit-*-manylinux_*_$(MACHINE).whl

.PHONY: demo demo-cluster test fuzz check test-k8s manifest-tools lint bench build wheel wheels deb clean
