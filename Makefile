# Every target sets up what it needs: python3 >= 3.11, make and git are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: install train test test-fast bench bench-peers lint

install: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "upweight needs Python 3.11 or later, and '$(PYTHON)' is not: say which one to use, as in make PYTHON=python3.12 install." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "'$(PYTHON)' cannot make virtual environments: install its venv package (Debian and Ubuntu: apt install python3-venv), then run make again." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

train: $(STAMP)
	$(BIN)/upweight train $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

test-fast: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

# All but what needs the other trainers: TRL and vLLM are measured beside us where bench-peers has set them up.
# One of them: make bench BENCH=bench/step.py ARGS=--json
BENCH ?= $(filter-out bench/peers.py,$(wildcard bench/*.py))

bench: $(STAMP)
	@for script in $(BENCH); do echo "== $$script"; $(BIN)/python "$$script" $(ARGS) || exit 1; done

# Environments of some 8 GB under .peers, then our numbers against the other trainers' own code.
bench-peers: $(STAMP)
	$(BIN)/python bench/speed/environments.py
	$(BIN)/python bench/peers.py $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
