# Everything runs in .venv. The first call makes it; later calls reuse it until pyproject or constraints change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/stagelens

.PHONY: demo test stress lint audit types docs bench verify verify-long gallery figures induction notebooks clean

# Trains a small transformer on which all four probes apply, measures it while it trains, and prints what formed when.
DEMO := runs/demo
demo: $(VENV)/.installed
	@echo "Training a one-layer transformer with three heads on a Markov chain, with four probes: about half a minute."
	$(RUN) run markov/full --name demo --replace
	@echo
	@echo "Look at $(DEMO)/figures/overview.png: the loss with its stages, and below it the readings of each head."
	@echo "Open    $(DEMO)/report.html in a browser: an interactive chart of every reading of every head."
	@echo "Try     $(RUN) run recall/transformer, or $(RUN) tasks for a list of all tasks. The tutorial is in docs/tutorial."

test: $(VENV)/.installed-dev
	$(MAKE) --jobs 2 lint types docs
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 10

# Injects hundreds of faults: about two hours. Each run draws a new seed and prints it; `make stress ARGS="--seed 7"`
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

# Checks that the installed packages fit together and have no known vulnerability, if a list of these can be reached.
audit: $(VENV)/.installed-dev
	$(BIN)/python -m pip check --disable-pip-version-check
	$(BIN)/python .ci/audit.py

types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/python docs/snippets.py

# One script for each table; the results are stored in benchmarks/results and shown in docs/speed.md.
BENCHMARKS := $(filter-out measure plain page,$(basename $(notdir $(wildcard benchmarks/*.py))))
# The site, in `site`; a broken link or an unlisted page is an error.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev
	@missed=""; for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name || missed="$$missed $$name"; done; \
	  $(BIN)/python -m benchmarks.page; test -z "$$missed" || { echo "missed a bar:$$missed"; exit 1; }

# Every claim, and the verdicts as the docs show them: about half an hour. Each verdict is written when it is decided, and
# the same command continues after an interruption. `make verify ARGS="markov --claim M1 --again"` verifies some again.
verify: $(VENV)/.installed
	$(BIN)/python docs/verify.py $(ARGS)

# The same with larger runs: up to 20 minutes per claim, six hours in all on two cores.
verify-long: $(VENV)/.installed
	$(BIN)/python docs/verify.py --budget long $(ARGS)

# The figures of the papers, for the gallery in the docs, from the runs of `make verify`. `ARGS=--again` draws all again.
gallery: $(VENV)/.installed
	$(BIN)/python docs/gallery.py $(ARGS)

# The figures of README and docs, made by the commands that the pages show next to them.
figures: $(VENV)/.installed
	rm -rf runs/figures && mkdir -p runs/figures
	$(RUN) run markov --runs runs/figures
	$(RUN) run markov/full --runs runs/figures --name overview
	cp runs/figures/overview/figures/overview.png docs/images/overview.png
	$(RUN) run recall/flow --runs runs/figures
	$(RUN) run linear-icl/flow --runs runs/figures
	cp runs/figures/markov-minimal-quick-seed0/figures/specialization.png docs/images/markov.png
	$(RUN) compare --runs runs/figures recall-flow-quick-seed0 linear-icl-flow-quick-seed0 --align stage --relative \
	  -o docs/images/compare.png
	$(RUN) sweep emergence/flow --grid T=log:64:4096:7 --grid d=16,64,256 --measure plateau_length --fit T,d \
	  --runs runs/figures --name plateau
	cp runs/figures/sweeps/plateau/figures/law.png docs/images/sweep.png
	$(BIN)/python docs/claims_picture.py
	$(RUN) run markov/full --runs runs/figures --name demo
	cp runs/figures/demo/figures/overview.png docs/images/overview.png
	mkdir -p docs/images/run
	for figure in probes loss specialization attention stages trajectory; do \
	  cp runs/figures/demo/figures/$$figure.png docs/images/run/ || exit 1; done
	for task in linear-icl/separate recall/original rich/text emergence/recall; do \
	  name=$$(echo $$task | tr / -); $(RUN) run $$task --runs runs/figures --name $$name && \
	  cp runs/figures/$$name/figures/overview.png docs/images/run/$$name.png || exit 1; done

# The example of docs/induction.md: trains a small language model, and writes the page's numbers and figure.
induction: $(VENV)/.installed
	rm -rf runs/induction runs/training
	$(BIN)/python docs/examples/induction/train.py runs/training
	$(RUN) probe runs/training --text runs/training/held_out.txt --length 128 --name induction
	$(BIN)/python docs/examples/induction/page.py runs/induction

# The notebooks with their outputs, as the docs show them.
notebooks: $(VENV)/.installed-dev
	cd docs/notebooks && PYTHONWARNINGS=ignore ../../$(BIN)/python -m jupyter execute --inplace *.ipynb && rm -rf runs my-paper

clean:
	rm -rf $(VENV) runs site .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@echo "Making a Python environment in $(VENV) ..."
	$(PYTHON) -m venv $(VENV)

# pip prints each package that it collects and installs.
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing stagelens with torch and TransformerLens into $(VENV): once, about two minutes."
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml constraints.txt
	@echo "Installing the tools for tests and docs into $(VENV): once."
	$(PIP) -e '.[dev]'
	@touch $@
