# Everything runs in .venv, which the first call makes and later calls reuse while pyproject and constraints stand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/stagelens

.PHONY: demo test lint types bench verify figures clean

demo: $(VENV)/.installed
	$(RUN) run markov

test: lint types
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

verify: $(VENV)/.installed
	$(RUN) verify

# The pictures of README and docs, made by the commands that stand beside them.
figures: $(VENV)/.installed
	rm -rf runs/figures && mkdir -p runs/figures
	$(RUN) run markov --runs runs/figures
	$(RUN) run recall/flow --runs runs/figures
	$(RUN) run linear-icl/flow --runs runs/figures
	cp runs/figures/markov-minimal-quick-seed0/figures/specialization.png docs/images/markov.png
	$(RUN) compare --runs runs/figures recall-flow-quick-seed0 linear-icl-flow-quick-seed0 --align stage --relative \
	  -o docs/images/compare.png

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
