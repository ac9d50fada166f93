#!/usr/bin/env bash
# `make bench`: builds and runs tests/bench/run.py with the given options.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh cpu-release bench_programs
exec build/venv/bin/python tests/bench/run.py "$@"
