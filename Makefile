# `make run` and `make test` do all the set-up on a fresh machine that has Python 3.11 or later.

PYTHON ?= python3
VENV ?= .venv
DATA ?= data
MINUTES ?= 10
LISTEN ?= tcp:9092:interface=127.0.0.1
STATUS ?= tcp:9090:interface=127.0.0.1

BIN := $(VENV)/bin
PACKAGING := setup.cfg setup.py pyproject.toml
FAST := tests/unit tests/contracts tests/fuzz
# The whole path: tests/conftest.py works in a folder of its own, and pytest would look for it there.
CONNECTED := tests/offline tests/sockets tests/clients tests/simulation --ignore=$(CURDIR)/tests/clients/gateway
SHARING := tests/clients/gateway tests/spark tests/system
CHECKED := src plugins twisted tests examples benchmarks setup.py .ci

.PHONY: help run wheel test test-compiled test-fast test-long test-attacks test-faults what-works simulate fuzz soak lint parity demo-offline demo-gateway follow-docs clean
.DELETE_ON_ERROR:

help:
	@echo "make run     start a broker on 127.0.0.1:9092 with its data in ./$(DATA), and its page on http://127.0.0.1:9090"
	@echo "make wheel   make a wheel for machines like this one, with the hot modules compiled, in ./dist"
	@echo "make test    run the tests, in a quarter of an hour on two cores"
	@echo "make test-fast  run those that need no more than Python: an answer in a minute or a little more"
	@echo "make test-long  run them with those that take long: benchmarks, the demo, Connect, slow groups"
	@echo "make test-compiled  run those of make test in $(VENV)-compiled, where the hot modules are compiled"
	@echo "make test-attacks  attack a broker and show what that costs it; LONG=1 attacks harder"
	@echo "make test-faults  kill a broker, fill its disk and so on, and show what clients notice; LONG=1 more often"
	@echo "make what-works  run other people's software against a broker, and write docs/what-works.md anew"
	@echo "make simulate  let simulated brokers live through what seeds say; SEEDS=1000, or SEED=17 again"
	@echo "make fuzz    fuzz everything that parses, for MINUTES=10 or SECONDS"
	@echo "make soak    a broker under everything at once for MINUTES=$(MINUTES), and whether anything of it grows"
	@echo "make lint    ruff, mypy and the import rules"
	@echo "make parity  run the tests under trial as well and compare with make test"
	@echo "make demo-offline  record a broker under real load for a minute, and say what twice the limit would change"
	@echo "make demo-gateway  put a gateway in front of three nodes of Apache Kafka for a minute; KEEP=1 until Ctrl-C"
	@echo "make follow-docs  do what the manual says, to the letter, in a fresh environment"
	@echo "make clean   remove $(VENV) and everything that was built"
	@echo "PYTHON=python3.12 chooses the Python that $(VENV) is made with"

run: $(VENV)/run.stamp
	$(BIN)/twistd -n --pidfile= admission --listen $(LISTEN) --status $(STATUS) --data $(DATA)

# Those that share nothing, and those that mostly wait for clients; then those that take seconds to start what they share,
# each kind on one core, and those that start processes of their own.
test: $(VENV)/test.stamp
	$(BIN)/python -m pytest -q -rs -n 2 --junitxml=build/fast.xml $(FAST) $(CONNECTED)
	$(BIN)/python -m pytest -q -rs -n 2 --dist loadgroup --junitxml=build/pytest.xml $(SHARING)

test-fast: $(VENV)/test.stamp
	$(BIN)/python -m pytest -q -n 2 $(FAST)

test-long: $(VENV)/test.stamp
	ADMISSION_LONG=yes $(BIN)/python -m pytest -rs

# Not those that stand alone: most are about a checkout, its commands and its documents.
test-compiled: $(VENV)-compiled/test.stamp
	$(VENV)-compiled/bin/python -c 'from admission._version import isCompiled; assert isCompiled(), "nothing is compiled"'
	$(VENV)-compiled/bin/python -m pytest -q -rs -n 2 $(FAST) $(CONNECTED)

wheel: $(VENV)/venv.stamp
	ADMISSION_COMPILE=1 $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

test-attacks: $(VENV)/test.stamp
	$(if $(LONG),ADMISSION_LONG=yes )$(BIN)/python -m pytest -rs -s tests/attacks

test-faults: $(VENV)/test.stamp
	$(if $(LONG),ADMISSION_LONG=yes )$(BIN)/python -m pytest -rs -s tests/faults

# Suites whose software is not to be had here keep the results that they have.
what-works: $(VENV)/test.stamp
	RECORD=yes $(BIN)/python -m pytest -q -rs tests/clients/suites -k "not PageTests"
	$(BIN)/python -m tests.clients.suites.results

simulate: $(VENV)/test.stamp
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000))

fuzz: $(VENV)/fuzz.stamp
	$(BIN)/python -m tests.fuzz run $(if $(SECONDS),--seconds $(SECONDS),--minutes $(MINUTES))

soak: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

lint: $(VENV)/lint.stamp
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_import_rules.py

parity: $(VENV)/test.stamp
	$(BIN)/python .ci/parity.py build/fast.xml build/pytest.xml

demo-offline: $(VENV)/test.stamp
	rm -rf build/offline-demo
	$(BIN)/python -m examples.offline_demo --out build/offline-demo

demo-gateway: $(VENV)/test.stamp
	$(BIN)/python -m examples.gateway_demo$(if $(KEEP), --keep)

follow-docs:
	PYTHON="$(PYTHON)" bash .ci/follow-docs

clean:
	rm -rf $(VENV) $(VENV)-compiled build dist *.egg-info _trial_temp* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src plugins twisted tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f twisted/plugins/dropin.cache

# Editable, so that a change in the sources needs no new installation, and because trial imports the tests from here.
$(VENV)/run.stamp: $(VENV)/venv.stamp $(PACKAGING)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/test.stamp: $(VENV)/venv.stamp $(PACKAGING)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/run.stamp

$(VENV)/lint.stamp: $(VENV)/venv.stamp $(PACKAGING)
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	@touch $@ $(VENV)/run.stamp $(VENV)/test.stamp

# The sources are built, not linked: after a change in them, make it again.
$(VENV)-compiled/test.stamp: $(VENV)/venv.stamp $(PACKAGING) $(shell find src plugins -name '*.py')
	"$(PYTHON)" -m venv $(VENV)-compiled
	ADMISSION_COMPILE=1 $(VENV)-compiled/bin/python -m pip install --quiet '.[test]'
	@touch $@

# Not with the tests: there is not a wheel for every machine, and it is not built here.
$(VENV)/fuzz.stamp: $(VENV)/test.stamp
	@$(BIN)/python -m pip install --quiet --only-binary atheris --editable '.[test,fuzz]' || \
		{ echo "fuzzing needs atheris, for which there is no wheel for this machine" >&2; exit 1; }
	@touch $@

$(VENV)/venv.stamp:
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) is not installed; name one with make PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "admission needs Python 3.11 or later, and $(PYTHON) is $$("$(PYTHON)" -V 2>&1); name another with make PYTHON=python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@
