# Every target sets up what it needs: a virtual environment, once, in $(VENV).
#   make test PYTHON=python3.12      with another Python
#   make test PYTHON=python3 VENV=   with what that Python has installed; installs nothing
#   make test ARGS="-k tiled"        arguments for pytest (or for the demo)
PYTHON = python3
VENV = .venv
ARGS =
# The oldest pair that pyproject.toml allows, and the newest Triton that was looked at.
OLDEST := $(shell sed -n 's/^ *"\(torch\|triton\)>=\([0-9.]*\).*/\1==\2.0/p' pyproject.toml)
LATEST = triton==3.9.0

# What Python compiles of torch is kept, whatever the environment says, which spares each of many
# processes 2 seconds, and 5 if it takes Dynamo.
export PYTHONDONTWRITEBYTECODE =

# The stamp carries the name of the Python, so that another PYTHON= is not silently ignored.
STAMP := ready-$(notdir $(PYTHON))
PY := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
READY := $(if $(VENV),$(VENV)/$(STAMP))
SETUP_FILES := pyproject.toml constraints.txt tools/setup.sh
# Of tests with many cases one in twenty, unless all combinations are asked for.
WIDE = --wide $(if $(filter all,$(TRITEMM_SWEEP)),1,20)
# One worker more than cores, since some tests wait for processes of their own, and one torch thread
# per worker; a Python without xdist (VENV=) runs one process.
workers = import os, xdist; print("-n", os.cpu_count() + 1, "--dist worksteal")
pytest = workers=$$($(1) -c '$(workers)' 2>/dev/null); \
	OMP_NUM_THREADS=1 $(1) -m pytest $$workers $(2) $(ARGS)

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(READY)  ## multiply, check and compare the rungs, on this machine
	$(PY) -m tritemm demo $(ARGS)

test: $(READY)  ## the suite
	@$(call pytest,$(PY),$(WIDE))

test-oldest: .venv-oldest/$(STAMP)  ## a part of what depends on torch or Triton, on the oldest pair
	@export TRITEMM_RELEASES='$(OLDEST)'; \
		$(call pytest,.venv-oldest/bin/python,--one-in 20 -m 'not once')

test-latest: .venv-latest/$(STAMP)  ## what depends on Triton, on the newest Triton
	@export TRITEMM_RELEASES='$(LATEST)'; $(call pytest,.venv-latest/bin/python,-m latest)

cuda: $(READY)  ## compile the CUDA kernels: for this GPU, or to machine code to look at
	$(PY) -m cuda_reference build $(ARGS)

sanitize: $(READY)  ## the CUDA kernels under compute-sanitizer; needs a GPU
	$(PY) tools/sanitize.py $(ARGS)

stress: $(READY)  ## hangs and races of the rungs that synchronise by hand; needs a GPU
	$(PY) tools/stress.py $(ARGS)

lint: $(READY)  ## ruff: rules and format; mypy: type hints
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

format: $(READY)  ## ruff: mend what it can
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

docs: $(READY)  ## write the generated pages anew
	$(PY) -m docs.generate

site: $(READY) .venv-site/$(STAMP)  ## the documentation as a site that opens from disk: build/site
	$(PY) -m docs.suite_page
	$(PY) -m docs.site.stage
	@.venv-site/bin/zensical build --strict --clean
	@echo 'open build/site/index.html'

browser: site  ## the site in a headless Chromium, which root gets from the distribution
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
		{ apt-get update -qq && apt-get install -qq -y chromium; }
	$(PY) -m pip install -q -c constraints.txt playwright
	$(PY) -m pytest tests/docs/test_site.py $(ARGS)

package: $(READY)  ## the release in dist/: a wheel and what it is built from, checked and tried
	@rm -rf dist
	@$(PY) -m build --no-isolation
	@$(PY) -m twine check --strict dist/*
	@TRITEMM_DIST=dist OMP_NUM_THREADS=1 $(PY) -m pytest tests/test_package.py $(ARGS)

package-matrix: package  ## the wheel with each Python, and the oldest and newest torch: gigabytes
	@$(PY) tools/package_matrix.py dist/*.whl $(ARGS)

pin: $(READY)  ## pin all packages of the gate's environments, in constraints.txt
	@$(PY) -m tools.pin

clean:  ## remove environments and caches
	rm -rf .venv .venv-oldest .venv-latest .venv-site .pytest_cache .ruff_cache .mypy_cache .cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

environments: $(READY) .venv-site/$(STAMP) .venv-oldest/$(STAMP)  # all that the gate needs

ifneq ($(VENV),)
$(READY): $(SETUP_FILES)
	@PYTHON='$(PYTHON)' tools/setup.sh '$(VENV)'
	@touch $@
endif

.venv-oldest/$(STAMP): $(READY) $(SETUP_FILES) Makefile
	@PYTHON='$(PY)' tools/setup.sh .venv-oldest $(or $(OLDEST),$(error pyproject.toml has no oldest pair))
	@touch $@

.venv-latest/$(STAMP): $(READY) $(SETUP_FILES) Makefile
	@PYTHON='$(PY)' tools/setup.sh .venv-latest $(LATEST)
	@touch $@

.venv-site/$(STAMP): $(SETUP_FILES)
	@PYTHON='$(PYTHON)' tools/setup.sh .venv-site site
	@touch $@

.PHONY: help environments demo test test-oldest test-latest cuda sanitize stress lint format docs site browser package package-matrix pin clean

# On a GPU: groups of tests that share a worker are kept, and the record may go elsewhere.
RECORD =
recorded = workers=$$($(PY) -c 'import xdist; print("-n auto --dist loadgroup")' 2>/dev/null); \
	OMP_NUM_THREADS=1 $(PY) -m pytest $$workers $(1) -p tools.suite_record --record='$(RECORD)' \
	$(ARGS)

test-gpu: $(READY)  ## what touches a device, on a GPU; leaves a record, or RECORD=PATH
	@$(call recorded)

test-gpus: $(READY)  ## the tests of several GPUs, on two or more; leaves a record of its own
	@$(call recorded,-m devices)

mutants-gpu: $(READY)  ## faults planted in kernels, one at a time: the suite finds each; needs a GPU
	$(PY) tools/mutants.py $(ARGS)

.PHONY: test-gpu test-gpus mutants-gpu
