#!/usr/bin/env bash
# Checks that need a CUDA device, on a machine with PyTorch and pytest and without vLLM.
# Takes well under five minutes. Record what you see in docs/gpu.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
python3 setup.py --quiet build_ext --inplace >/dev/null
exec python3 -m pytest -q -p no:cacheprovider --confcutdir=tests/gpu tests/gpu "$@"
