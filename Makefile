PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# What exists of these is checked; a folder without Python files would be an error to mypy.
CHECKED := $(sort $(foreach folder,src tests examples benchmarks docs/site,$(if $(wildcard $(folder)/*.py $(folder)/*/*.py),$(folder))))

# Without bytecode files, each of the many processes that tests start compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

# Processes of pytest. Many tests wait for another process or for a timer, so there are more of them than cores.
JOBS ?= 5

# An example in another language, whose packages the proofs need.
NODE_WORKER := examples/node-worker

.DEFAULT_GOAL := help
.PHONY: help demo check lint mypy pyright quick quick-tests test all-tests docs lock bench bench-check mutants prove screenshots clean

help: ## Say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(VENV)/.runtime ## See a workflow survive a kill -9, in about ten seconds
	@$(BIN)/perdure demo

check: lint ## Lint, format and types
	@$(MAKE) --no-print-directory -j2 mypy pyright

lint: $(VENV)/.dev
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

mypy pyright: $(VENV)/.dev
	$(BIN)/$@ $(if $(filter mypy,$@),$(CHECKED),--pythonpath $(BIN)/python)

quick: lint ## Lint, types and the tests that need no server and start no process, side by side
	@$(MAKE) --no-print-directory -j3 quick-tests mypy pyright

quick-tests: $(VENV)/.dev
	$(BIN)/pytest --quick -q -n 2 --dist worksteal --no-header -r fE

test: lint ## Everything that must hold before a commit: lint, then types and all tests side by side
	@$(MAKE) --no-print-directory -j3 all-tests mypy pyright

all-tests: $(VENV)/.dev
	@# In a new clone, pytest rewrites the assertions of every file: only once, not by each process at the same time.
	@ls tests/store/__pycache__/*-pytest-*.pyc > /dev/null 2>&1 || $(BIN)/pytest --collect-only -q -n 0 > /dev/null || true
	$(BIN)/python -m tests.servers $(BIN)/pytest -n $(JOBS) --dist worksteal

docs: $(VENV)/.docs ## Build the documentation site in build/site; a test of `make test` does the same
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: $(VENV)/.runtime ## Write constraints.txt anew: the version of each package that development uses, for all Pythons
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
		--python-version 3.11 --upgrade pyproject.toml --all-extras --group dev -o constraints.txt

bench: $(VENV)/.bench ## Measure this machine: make bench ARGS="w2 --json"
	$(BIN)/python -m benchmarks $(ARGS)

bench-check: $(VENV)/.bench ## Fail if a step or a run costs 3 % more instructions than the committed figure: BASE=revision counts that instead
	$(BIN)/python -m benchmarks.check $(if $(BASE),--base $(BASE)) $(ARGS)

mutants: $(VENV)/.dev ## Plant faults one at a time and list those that no test notices: ARGS="store --each 80"
	$(BIN)/python -m tests.mutants $(ARGS)

prove: $(VENV)/.dev $(NODE_WORKER)/node_modules ## The long version of every fault test and search; then the usual one through pgbouncer
	PERDURE_PROVE=1 $(BIN)/python -m tests.servers $(BIN)/pytest -n $(JOBS) --dist worksteal --timeout 7200
	$(BIN)/python -m tests.servers --pgbouncer $(BIN)/pytest -n $(JOBS) --dist worksteal

screenshots: $(VENV)/.dev ## Write pictures of the dashboard's pages to build/screenshots, with Chromium
	$(BIN)/python -m tests.dashboard.screenshots build/screenshots

clean: ## Remove what the other targets made
	rm -rf $(VENV) .mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist $(NODE_WORKER)/node_modules
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(NODE_WORKER)/node_modules: $(NODE_WORKER)/package.json
	@if command -v npm > /dev/null; \
		then npm install --prefix $(NODE_WORKER) --no-audit --no-fund --no-package-lock && touch $@; \
		else echo "*** No Node.js: its worker will not be tried. ***"; fi

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Perdure needs Python 3.11 or newer; $(PYTHON) is not. Say: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.runtime
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fast,metrics,otel]' opentelemetry-sdk
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt $(VENV)/.runtime
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . --group docs
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.runtime
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . --group dev
	@touch $@
