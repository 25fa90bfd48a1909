# make demo: see it work. make up: run it. make test, check, bench, gpu-test: for those who change it.
PYTHON ?= python3
VENV := .venv
BUILD := $(CURDIR)/.build
PY := $(CURDIR)/$(VENV)/bin/python
PIP := $(PY) -m pip install -q --disable-pip-version-check --require-hashes

.PHONY: demo up test check format bench gpu-test setup dev native clean

setup: $(VENV)/.run native $(BUILD)/vendor/.done
dev: $(VENV)/.dev setup

$(VENV)/.run: requirements/run.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements/run.txt
	touch $@

$(VENV)/.dev: requirements/dev.txt | $(VENV)/.run
	$(PIP) -r requirements/dev.txt
	touch $@

native: $(VENV)/.run
	$(MAKE) -s -C shim BUILD=$(BUILD) PY=$(PY)

$(BUILD)/vendor/.done: static/package-lock.json | $(VENV)/.run
	static/install $(BUILD)/vendor $(PY)
	touch $@
