# make demo: install what it needs, answer a prompt with the built-in pair, compare with plain decoding
# make test: run the fast tests        make lint: ruff and mypy
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint clean

DEMO_PROMPT ?= Write a Python function that reverses a string, and explain it.

demo: $(READY)
	$(BIN)/mirror-sd generate --compare --max-tokens 128 "$(DEMO_PROMPT)"

# Two processes with one thread each: most of a test is Python, and MLX itself uses one core.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# Bits are compared with the reference BLAS, in processes of its own.
test: $(READY)
	MIRROR_SD_BLAS=off $(PYTEST) -m "exact and not slow" tests/test_lossless.py
	$(PYTEST) -m "not exact and not slow"

test-slow: $(READY)
	$(PYTEST) -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The extra `blas` has platform markers: it installs nothing on a Mac.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mirror-sd needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[ane,blas,dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
