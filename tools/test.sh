#!/usr/bin/env bash
# Every check that a change must pass, in the order of what they cost: lint, format, types, tests.
# The exit code is pytest's (or that of the first check that failed). Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
step() { printf '== %s\n' "$*"; }

step ruff check
$python -m ruff check .
step ruff format --check
$python -m ruff format --check .
step mypy
$python -m mypy
step pytest
exec $python -m pytest --cov --cov-report=term "$@"
