# Everything runs in .venv, which the first call makes and later calls reuse while pyproject and constraints stand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/stagelens

.PHONY: demo test stress lint audit types docs bench verify figures notebooks clean

demo: $(VENV)/.installed
	$(RUN) run markov

test: $(VENV)/.installed-dev
	$(MAKE) --jobs 2 lint types docs
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 10

# Injects faults by the hundred: about two hours. Each run draws a new seed and prints it; `make stress ARGS="--seed 7"`
# repeats one. `make stress ARGS=--record` updates docs/reliability.md.
stress: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/stress tests/probes/test_probe_properties.py --hypothesis-profile stress \
	  --numprocesses 2 --dist loadfile $(ARGS); code=$$?; \
	  case "$(ARGS)" in *--record*) $(BIN)/python tests/stress/page.py;; esac; exit $$code

lint: audit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml toolkit probes plugins benchmarks docs .ci

# What is installed fits together, and has no known hole: where no list of those can be asked, it says so.
audit: $(VENV)/.installed-dev
	$(BIN)/python -m pip check --disable-pip-version-check
	$(BIN)/python .ci/audit.py

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# One script for each figure; what they find is kept in benchmarks/results and shown in docs/speed.md.
BENCHMARKS := $(filter-out measure plain page,$(basename $(notdir $(wildcard benchmarks/*.py))))
# The site, in `site`; a broken link or an unlisted page is an error.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev
	@missed=""; for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name || missed="$$missed $$name"; done; \
	  $(BIN)/python -m benchmarks.page; test -z "$$missed" || { echo "missed a bar:$$missed"; exit 1; }

# Every claim, and the verdicts as the docs show them.
verify: $(VENV)/.installed
	mkdir -p docs/verified
	for plugin in markov linear-icl recall rich emergence; do \
	  $(RUN) verify $$plugin --json > docs/verified/$$plugin.json || exit 1; done

# The pictures of README and docs, made by the commands that stand beside them.
figures: $(VENV)/.installed
	rm -rf runs/figures && mkdir -p runs/figures
	$(RUN) run markov --runs runs/figures
	$(RUN) run recall/flow --runs runs/figures
	$(RUN) run linear-icl/flow --runs runs/figures
	cp runs/figures/markov-minimal-quick-seed0/figures/specialization.png docs/images/markov.png
	$(RUN) compare --runs runs/figures recall-flow-quick-seed0 linear-icl-flow-quick-seed0 --align stage --relative \
	  -o docs/images/compare.png
	$(RUN) sweep emergence/flow --grid T=log:64:4096:7 --grid d=16,64,256 --measure plateau_length --fit T,d \
	  --runs runs/figures --name plateau
	cp runs/figures/sweeps/plateau/figures/law.png docs/images/sweep.png
	$(BIN)/python docs/claims_picture.py

# The notebooks with their outputs, as the docs show them.
notebooks: $(VENV)/.installed-dev
	cd docs/notebooks && PYTHONWARNINGS=ignore ../../$(BIN)/python -m jupyter execute --inplace *.ipynb && rm -rf runs my-paper

clean:
	rm -rf $(VENV) runs site .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
