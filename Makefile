# One environment, made on first use; every target brings what it needs.
PYTHON ?= python3
VENV   ?= .venv
RUN    := $(VENV)/bin/python
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test lint format docs notebooks dist clean

$(VENV)/.installed: requirements.txt requirements-arm.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "udc-tf needs Python 3.11, 3.12 or 3.13; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Debian: apt-get install python3-venv"; exit 1; }
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-arm.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(VENV)/.installed  ## search, finetune, export, compile, verify, report on the embedded data
	$(RUN) -m udc_tf.cli.demo

# Two workers fill two cores: more threads each would only wait for one another.
test: export TF_NUM_INTRAOP_THREADS ?= 1
test: $(VENV)/.installed lint  ## every test, at most 15 minutes on 2 cores
	$(RUN) -m pytest -n 2 --dist loadscope $(ARGS)

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/.installed  ## the site, into build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

notebooks: $(VENV)/.installed  ## runs docs/notebooks in full and keeps what they print and draw
	$(RUN) docs/notebooks.py docs/notebooks/*.ipynb

dist: $(VENV)/.installed  ## sdist and wheel, into dist
	rm -rf dist
	$(RUN) -m build --no-isolation --outdir dist
	$(RUN) -m twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache
