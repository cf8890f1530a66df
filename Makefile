# Two commands: `make lab` opens the course, `make test` runs everything. Both need python3 and make, no more.
#   make lab ARGS="--lang zh --no-browser --port 8899"
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: lab test test-quick test-colab test-transformers-oldest test-transformers-newest bench results setup notebooks clean

lab: setup
	$(BIN)/minikv lab $(ARGS)

test: setup
	$(BIN)/python -m tools.run_tests $(ARGS)

# Unit tests and the notebooks that changed since the last commit: the inner loop.
test-quick: setup
	$(BIN)/python -m tools.run_tests --quick $(ARGS)

# The lessons with the versions that Colab has, in .venv-colab: make test-colab ARGS="02 10 --lang en"
test-colab: setup
	$(BIN)/python -m tools.colab $(ARGS)

# What leans on transformers, with the oldest release that we support and with today's newest.
test-transformers-oldest test-transformers-newest: setup
	$(BIN)/python -m tools.transformers_versions $(@:test-transformers-%=%) $(ARGS)

# What this machine says to every claim, in a short form; RESULTS.md has the long ones.
bench: setup
	$(BIN)/python -m tools.bench $(ARGS)

# RESULTS.md from benchmarks/results.
results: setup
	$(BIN)/python -m tools.results $(ARGS)

# Generate and run the notebooks whose sources changed.
notebooks: setup
	$(BIN)/python -m tools.notebooks build $(ARGS)

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'minikv needs Python 3.11 or newer')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) .venv-* build dist
