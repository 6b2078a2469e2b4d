# Every target installs what it needs in .venv: Python 3.10 or newer and pip are enough.
#   make demo        the main job on the sample included in the repository
#   make test        the quick tests         make test-slow   those that take minutes
#   make check       lint, format and types  make fix         fix what can be fixed automatically
# Another Python: make PYTHON=python3.12 demo. pip's own settings (index, proxy) are honoured.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt

.PHONY: demo test test-slow check fix clean

demo: .venv/demo.stamp
	$(BIN)/python examples/demo.py

# pyproject.toml passes -q to pytest; a second one would hide the summary. A test uses one thread, so
# there is one process per core; an idle process takes over tests from a busy one.
# Compiled modules are kept even where Python is set not to: every process would compile them again.
test test-slow: export PYTHONDONTWRITEBYTECODE =
test: .venv/full.stamp
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: .venv/full.stamp
	$(BIN)/python -m pytest -m slow

check: .venv/full.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --threads

fix: .venv/full.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Your own runs and .venv are kept: both took time to make.
clean:
	rm -rf build dist src/*.egg-info runs/demo .pytest_cache .ruff_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# torch by itself first: it is the longest download, and other failures come after it.
.venv/demo.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	{ echo 'OwnBERT needs Python 3.10 or newer; "$(PYTHON)" is not: make PYTHON=/path/to/python3' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[plot,eval]'
	@touch $@

# pyright[nodejs] installs Node as a wheel, so that type checking needs nothing but pip.
.venv/full.stamp: .venv/demo.stamp
	$(PIP) -e '.[plot,eval,test,dev]' 'pyright[nodejs]'
	@touch $@
