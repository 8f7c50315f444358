# The few commands of this project, the same on a laptop and in CI. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SWEEP ?= --smoke
PYTEST ?= --numprocesses 3 --dist loadscope   # most tests wait for a sandbox, and not for a CPU

.PHONY: sweep test check format testbed clean

sweep: $(VENV)/ready  ## the main job in its quick form, on every substrate this node has
	$(BIN)/python benchmarks/sweep.py $(SWEEP)

test: $(VENV)/ready  ## every test this machine can run; says what it skipped, why, and how to have it
	$(BIN)/python -m pytest $(PYTEST)

check: $(VENV)/ready  ## before every commit: format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/ready  ## the same, mending what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

testbed:  ## a real Docker engine on a Debian machine, as root
	cluster/testbed/testbed up

$(VENV)/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rayroll needs Python 3.11 or newer, not " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -c 'from rayroll.runner.build import runner_path; print("runner:", runner_path())'
	touch $@

clean:  ## what can be made again
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
