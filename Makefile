# Two commands for a newcomer: `make demo` and `make test`. Both set up a virtual environment first.
PYTHON ?= python3
VENV ?= .venv
PY = $(VENV)/bin/python
# Small models on one thread a process are faster than two threads on one process.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test setup glyphs

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --disable-pip-version-check torch==2.14.1 torchvision==0.29.1
	$(VENV)/bin/pip install --disable-pip-version-check -e ".[dev]"
	touch $@

demo: setup
	$(PY) -m train.demo

test: setup
	$(PY) -m pytest -n 2

# Rebuilds the embedded glyph atlas from the font packages (needs the `fonts` extra of scripts/build_glyphs.py).
glyphs: setup
	$(PY) scripts/build_glyphs.py
