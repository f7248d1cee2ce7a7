# Every target works on a fresh checkout: `setup` makes .venv first. See CONTRIBUTING.md.
PYTEST_ARGS ?=

.PHONY: help setup demo test lint fmt clean

help:
	@echo "make setup   create .venv with vLLM's CPU build, this package and its tools"
	@echo "make demo    serve a tiny MiMo-V2 on the CPU and talk to it"
	@echo "make test    lint, types and tests, as CI runs them (PYTEST_ARGS='-k config')"
	@echo "make lint    ruff and mypy only"
	@echo "make fmt     let ruff format and fix"
	@echo "make clean   remove caches and build products (.venv stays)"

setup:
	@tools/bootstrap.sh

demo: setup
	.venv/bin/python examples/serve_demo.py

test: setup
	@tools/test.sh $(PYTEST_ARGS)

lint: setup
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy

fmt: setup
	.venv/bin/python -m ruff format .
	.venv/bin/python -m ruff check --fix .

clean:
	rm -rf .cache .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache \
		htmlcov build dist *.egg-info tools/vllm_cpu_metadata/build \
		tools/vllm_cpu_metadata/*.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
