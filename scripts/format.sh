#!/usr/bin/env bash
# Formats the C++ and Python files that git tracks.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/stages.sh
tracked '*.cpp' '*.hpp' '*.cu' '*.cuh' | xargs clang-format-16 -i
"$python" -m ruff check --fix --exit-zero clients scripts tests
"$python" -m ruff format clients scripts tests
