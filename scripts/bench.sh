#!/usr/bin/env bash
# `make bench`: builds and runs tests/bench/run.py with the given options.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh cpu-release gradsyncd bench_floor bench_echo bench_echo_tcp bench_coordinator bench_allocations \
  bench_instructions
exec build/venv/bin/python tests/bench/run.py "$@"
