# make demo   a learning-rate transfer study on this machine, with a report to open in a browser
# make test   everything that a change has to pass
# Both set up .venv by themselves; a second run finds its stamp files and installs nothing again.

PYTHON ?= python3
BIN := .venv/bin
STUDY := .venv/.installed-study
DEV := .venv/.installed-dev
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test lint types pytest format clean

help:
	@echo "make demo       train a small sweep and write runs/demo/report.html"
	@echo "make test       ruff, mypy --strict, pytest with doctests"
	@echo "make format     let ruff rewrite what it can"
	@echo "make setup      .venv with what 'moga transfer' needs;  make setup-dev: and the checks"
	@echo "make clean      remove .venv, caches and runs/demo"
	@echo "PYTHON=...      the interpreter that makes .venv (3.11 or newer; default: python3)"

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "the pinned packages need Python 3.11 or newer; '$(PYTHON)' is older or missing. Name another: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv \
	  || { echo "'$(PYTHON) -m venv' failed. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@touch $@

$(STUDY): .venv/.created pyproject.toml constraints.txt
	$(BIN)/pip install -c constraints.txt -e '.[study]'
	@touch $@

# timm's metadata asks for torchvision, which does not load beside the pinned torch: it lies where only its tests look.
$(DEV): .venv/.created pyproject.toml constraints.txt
	$(BIN)/pip install -c constraints.txt -e '.[study,dev]'
	$(BIN)/pip install --no-deps --upgrade --target .venv/timm timm==1.0.31
	@touch $(STUDY) $@

setup: $(STUDY)
setup-dev: $(DEV)

demo: $(STUDY)
	$(BIN)/moga transfer --preset quick --out runs/demo

test: lint types pytest

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

# One thread per worker: the sizes in the tests are small, and two workers of many threads only get in each other's way.
pytest: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(PYTEST_WORKERS)

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis runs/demo src/*.egg-info
