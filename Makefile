# `make run` and `make test` do all the set-up on a fresh machine that has Python 3.11 or later.

PYTHON ?= python3
VENV ?= .venv
DATA ?= data
MINUTES ?= 10
LISTEN ?= tcp:9092:interface=127.0.0.1
STATUS ?= tcp:9090:interface=127.0.0.1

BIN := $(VENV)/bin
# Python compiles a module when it is first imported; most of what comes with the packages never is.  Where it may not keep
# what it compiled, as in many containers, each of hundreds of servers would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := install --quiet --no-compile
PACKAGING := setup.cfg setup.py pyproject.toml
# What needs no more than the dev extra installs; the rest needs Spark's packages, real clients or a browser.
FAST := tests/unit tests/contracts tests/fuzz
# What is about neither Spark, nor other people's clients, nor installations.
REST := tests/system tests/simulation tests/sockets tests/offline $(FAST)
# All but the attacks and the faults.
# In this order: what takes longest in one piece is not begun last.
TESTED := tests/spark tests/clients tests/installation $(REST)
WORKERS := 4
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
# What imports Spark's packages, which only the test extra installs, in the form of mypy's --exclude.
ARROW := admission/(offline/|shipping/|recording/(arrow|hdfs|places))|admission_plugins/sealing|pyspark_admission/
CHECKED := src plugins twisted tests examples benchmarks docs setup.py .ci

.PHONY: help run wheel wheels hooks test test-compiled test-fast test-pythons test-long test-attacks test-faults pictures what-works other-servers simulate fuzz soak lint parity mutants demo-offline demo-gateway follow-docs docs release clean
.DELETE_ON_ERROR:

help:
	@echo "make run     start a broker on 127.0.0.1:9092 with its data in ./$(DATA), and its page on http://127.0.0.1:9090"
	@echo "make wheel   make a wheel for machines like this one, with the hot modules compiled, in ./dist"
	@echo "make wheels  build the sdist, a pure wheel and a compiled one for each Python that is installed, and try them; PYTHONS='$(PYTHONS)'"
	@echo "make test-fast  run the tests that need no more than Python, in about a minute; make lint checks the rest of a change"
	@echo "make hooks   have git run ruff and the import rules before each commit"
	@echo "make test    run all tests but the attacks and the faults, in eight minutes on two cores"
	@echo "make test-pythons  run the fast tests with each Python that is installed; PYTHONS='$(PYTHONS)'"
	@echo "make test-long  run them with those that take long: benchmarks, the demo, Connect, slow groups"
	@echo "make test-compiled  run those of make test in $(VENV)-compiled, where the hot modules are compiled"
	@echo "make test-attacks  attack a broker and show what that costs it; LONG=1 attacks harder"
	@echo "make test-faults  kill a broker, fill its disk and so on, and show what clients notice; LONG=1 more often"
	@echo "make pictures  make the pictures of the manual anew, in twelve minutes; NAMES='status goodput' only these"
	@echo "make what-works  run other people's software against a broker and a gateway, and write what docs/what-works*.md say anew"
	@echo "make other-servers  run other people's servers, plain and protected, and attack both; NAMES='daphne carbon' only these"
	@echo "make simulate  let simulated brokers live through what seeds say; SEEDS=1000, or SEED=17 again"
	@echo "make fuzz    fuzz everything that parses, for MINUTES=10 or SECONDS"
	@echo "make soak    a broker under everything at once for MINUTES=$(MINUTES), and whether anything of it grows"
	@echo "make lint    ruff, mypy and the import rules; after make test, mypy checks the offline part, too"
	@echo "make parity  compare trial with make test: verdicts of the unit tests, names of all others"
	@echo "make mutants change the core in small ways, and count the changes that its own tests do not notice"
	@echo "make docs    build the site of documentation, with the reference of all public names, in build/site"
	@echo "make release build and check what is published; VERSION=0.2.0 makes it that version and writes NEWS.md"
	@echo "make demo-offline  record a broker under real load for a minute, and say what twice the limit would change"
	@echo "make demo-gateway  put a gateway in front of three nodes of Apache Kafka for a minute; KEEP=1 until Ctrl-C"
	@echo "make follow-docs  do what the manual says, to the letter, in a fresh environment"
	@echo "make clean   remove $(VENV) and everything that was built"
	@echo "PYTHON=python3.12 chooses the Python that $(VENV) is made with"

run: $(VENV)/run.stamp
	$(BIN)/twistd -n --pidfile= admission --listen $(LISTEN) --status $(STATUS) --data $(DATA)

# For two cores: one worker begins with Spark, one with the clusters and clients of Kafka, which both wait a good deal, and
# one with all else.
test: $(VENV)/test.stamp
	$(BIN)/python -m pytest -q -rs -n $(WORKERS) --dist loadfile --no-loadscope-reorder --junitxml=build/pytest.xml $(TESTED)

# Assertions are trial's own, so that pytest need not rewrite any, in each of its processes.
test-fast: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -n auto --assert=plain $(FAST)

# Each in an environment of its own; a Python that is not installed is named.
test-pythons:
	PYTHONS="$(PYTHONS)" FAST="$(FAST)" bash .ci/test-pythons

test-long: $(VENV)/test.stamp
	ADMISSION_LONG=yes $(BIN)/python -m pytest -rs

# Not those that stand alone: most are about a checkout, its commands and its documents.
test-compiled: $(VENV)-compiled/test.stamp
	$(VENV)-compiled/bin/python -c 'from admission._version import isCompiled; assert isCompiled(), "nothing is compiled"'
	$(VENV)-compiled/bin/python -m pytest -q -rs -n 2 $(FAST) tests/offline tests/sockets tests/simulation

wheel: $(VENV)/venv.stamp
	ADMISSION_COMPILE=1 $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# All that is published; a Python that is not installed is named.
wheels: $(VENV)/release.stamp
	PYTHONS="$(PYTHONS)" bash .ci/wheels $(BIN)

test-attacks: $(VENV)/test.stamp
	$(if $(LONG),ADMISSION_LONG=yes )$(BIN)/python -m pytest -rs -s tests/attacks

test-faults: $(VENV)/test.stamp
	$(if $(LONG),ADMISSION_LONG=yes )$(BIN)/python -m pytest -rs -s tests/faults

# With a browser, and on a machine that does nothing else.
pictures: $(VENV)/test.stamp
	$(BIN)/python -m tests.kit.pictures $(NAMES)

# Suites whose software is not to be had here keep the results that they have.
what-works: $(VENV)/test.stamp
	ADMISSION_LONG=yes RECORD=yes $(BIN)/python -m pytest -q -rs tests/clients/suites -k "not PageTests"
	$(BIN)/python -m tests.clients.suites.results

# Each server has an environment of its own in build/servers, made from the registry the first time.
other-servers: $(VENV)/test.stamp
	ADMISSION_LONG=yes $(BIN)/python -m tests.clients.servers $(NAMES)

simulate: $(VENV)/test.stamp
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000))

mutants: $(VENV)/dev.stamp
	$(BIN)/python -m tests.mutants --count $(or $(COUNT),300)

fuzz: $(VENV)/fuzz.stamp
	$(BIN)/python -m tests.fuzz run $(if $(SECONDS),--seconds $(SECONDS),--minutes $(MINUTES))

soak: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy $(if $(wildcard $(VENV)/test.stamp),,--follow-imports=silent --exclude '$(ARROW)') src/admission plugins
	$(BIN)/python -m pytest -q tests/unit/test_import_rules.py

parity: $(VENV)/test.stamp
	PYTHONPATH=$(CURDIR) $(BIN)/python .ci/parity.py build/pytest.xml

demo-offline: $(VENV)/test.stamp
	rm -rf build/offline-demo
	$(BIN)/python -m examples.offline_demo --out build/offline-demo

demo-gateway: $(VENV)/test.stamp
	$(BIN)/python -m examples.gateway_demo$(if $(KEEP), --keep)

follow-docs:
	PYTHON="$(PYTHON)" bash .ci/follow-docs

# The reference first, since the manual refers to it.  Without a network: where other projects document their names follows
# from the names.
docs: $(VENV)/docs.stamp
	rm -rf build/site
	$(BIN)/pydoctor --quiet --warnings-as-errors --docformat epytext --project-name admission --project-url ../index.html \
		--html-output build/site/api $$($(BIN)/python docs/apilinks.py build/inventories) \
		src/admission plugins/admission_plugins plugins/pyspark_admission
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -d build/doctrees -c docs . build/site
	cp build/site/README.html build/site/index.html
	@echo "the site begins at build/site/index.html"

release: $(VENV)/release.stamp
	VERSION="$(VERSION)" bash .ci/release $(BIN)

# Before each commit: ruff, and the import rules where they may have changed.
hooks: $(VENV)/dev.stamp
	@hook="$$(git rev-parse --git-path hooks)/pre-commit"; mkdir -p "$$(dirname "$$hook")"; \
	if [ -e "$$hook" ] && ! cmp -s "$$hook" .ci/pre-commit; then \
		echo "$$hook is another hook already; have it call .ci/pre-commit" >&2; exit 1; fi; \
	ln -sf "$(CURDIR)/.ci/pre-commit" "$$hook"; echo "git runs .ci/pre-commit before each commit now"

clean:
	rm -rf $(VENV) $(VENV)-compiled build dist *.egg-info _trial_temp* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src plugins twisted tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f twisted/plugins/dropin.cache

# Editable, so that a change in the sources needs no new installation.
$(VENV)/run.stamp: $(VENV)/venv.stamp $(PACKAGING)
	$(BIN)/python -m pip $(INSTALL) --editable '.[kafka]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/venv.stamp $(PACKAGING)
	$(BIN)/python -m pip $(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/run.stamp

$(VENV)/test.stamp: $(VENV)/venv.stamp $(PACKAGING)
	$(BIN)/python -m pip $(INSTALL) --editable '.[test]'
	@touch $@ $(VENV)/run.stamp $(VENV)/dev.stamp

$(VENV)/docs.stamp: $(VENV)/venv.stamp $(PACKAGING)
	$(BIN)/python -m pip $(INSTALL) --editable '.[docs]'
	@touch $@

$(VENV)/release.stamp: $(VENV)/venv.stamp $(PACKAGING)
	$(BIN)/python -m pip $(INSTALL) --editable '.[kafka,release]'
	@touch $@ $(VENV)/run.stamp

# The sources are built, not linked: after a change in them, make it again.
$(VENV)-compiled/test.stamp: $(VENV)/venv.stamp $(PACKAGING) $(shell find src plugins -name '*.py')
	"$(PYTHON)" -m venv $(VENV)-compiled
	ADMISSION_COMPILE=1 $(VENV)-compiled/bin/python -m pip $(INSTALL) '.[test]'
	@touch $@

# Not with the tests: there is not a wheel for every machine, and it is not built here.
$(VENV)/fuzz.stamp: $(VENV)/test.stamp
	@$(BIN)/python -m pip $(INSTALL) --only-binary atheris --editable '.[test,fuzz]' || \
		{ echo "fuzzing needs atheris, for which there is no wheel for this machine" >&2; exit 1; }
	@touch $@

$(VENV)/venv.stamp:
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) is not installed; name one with make PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "admission needs Python 3.11 or later, and $(PYTHON) is $$("$(PYTHON)" -V 2>&1); name another with make PYTHON=python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@
