# Two commands: `make lab` opens the course, `make test` runs its tests. Both need python3 and make, no more.
#   make lab ARGS="--lang zh --no-browser --port 8899"
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LAB_READY := $(VENV)/.ready-lab
SITE_READY := $(VENV)/.ready-site
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: lab test test-all test-quick test-colab test-transformers-oldest test-transformers-newest test-triton36 test-python bench bench-vllm bench-kvpress results site stale setup notebooks clean

lab: $(LAB_READY)
	$(BIN)/minikv lab $(ARGS)

test: setup
	$(BIN)/python -m tools.run_tests $(ARGS)

# Also the tests marked long: what a release runs.
test-all: setup
	$(BIN)/python -m tools.run_tests --all $(ARGS)

# Unit tests and the notebooks that changed since the last commit: the inner loop.
test-quick: setup
	$(BIN)/python -m tools.run_tests --quick $(ARGS)

# The lessons with the versions that Colab has, in .venv-colab: make test-colab ARGS="02 10 --lang en"
test-colab: setup
	$(BIN)/python -m tools.colab $(ARGS)

# What leans on transformers, with the oldest release that we support and with today's newest.
test-transformers-oldest test-transformers-newest: setup
	$(BIN)/python -m tools.versions --transformers $(@:test-transformers-%=%) $(ARGS)

# What the kernels compile to with the oldest Triton that we support, and the torch that chooses it.
test-triton36: setup
	$(BIN)/python -m tools.versions --torch 2.11.0 --triton 3.6.0 $(or $(ARGS),tests/kernels/test_compiled.py)

# The same with another Python: make test-python PYTHON=python3.13; with ARGS=--core what needs no torch.
test-python: setup
	$(BIN)/python -m tools.versions --python $(PYTHON) $(ARGS)

# What this machine says to every claim, in a short form; RESULTS.md has the long ones.
bench: setup
	$(BIN)/python -m tools.bench $(ARGS)

# minikv beside vLLM, which gets an environment of its own (.venv-vllm, 3.5 GB) the first time; ARGS=--quick takes 2 minutes.
bench-vllm: setup
	$(BIN)/python -m tools.vllm
	$(BIN)/python -m benchmarks.vllm_cpu $(ARGS)

# minikv's eviction beside kvpress, which gets an environment of its own (.venv-kvpress, 2 GB) the first time.
bench-kvpress: setup
	$(BIN)/python -m tools.kvpress
	$(BIN)/python -m benchmarks.kvpress_peer $(ARGS)

# RESULTS.md from benchmarks/results.
results: setup
	$(BIN)/python -m tools.results $(ARGS)

# Generate and run the notebooks whose sources changed, and record for the site what their widgets show.
notebooks: setup
	$(BIN)/python -m tools.notebooks build $(ARGS)
	$(BIN)/python -m tools.site.record

# The notebooks and documents as pages, in build/site; ARGS=--serve shows them on this machine.
site: $(SITE_READY)
	$(BIN)/python -m tools.site $(ARGS)

# What goes stale although nothing here changes: runs the checks that need no network; ARGS=--network, ARGS=--list.
stale: setup
	$(BIN)/python -m tools.stale $(ARGS)

setup: $(READY)

# What a reader needs, and no more; [dev] has it too.
$(LAB_READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing minikv, torch and JupyterLab in $(VENV), this once: 2 to 10 minutes."
	@echo "Linux: up to 4,000 MB to download and 6,500 on the disk, most of it for CUDA; a CPU build of torch: 500 and 2,200."
	@echo "首次运行，正在把 minikv、torch 和 JupyterLab 安装到 $(VENV)：需要 2 到 10 分钟。"
	@echo "Linux 上最多下载 4,000 MB、占用磁盘 6,500 MB，大部分是 CUDA 库；CPU 版的 torch 约为 500 MB 和 2,200 MB。"
	$(INSTALL) -e ".[lab]"
	touch $(LAB_READY)

$(SITE_READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --quiet -e ".[site]"
	touch $(SITE_READY)

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --quiet -e ".[dev]"
	touch $(READY) $(LAB_READY) $(SITE_READY)

$(BIN)/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'minikv needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) .venv-* build dist
