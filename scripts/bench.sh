#!/usr/bin/env bash
# `make bench`: builds, adds the peers to the Python environment, runs tests/bench/run.py with the given options.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=build/venv/.requirements-bench
if ! cmp -s scripts/requirements-bench.txt "$stamp"; then
  echo "bench: installing the peers"
  # DeepSpeed is a source package whose build looks at the torch that is installed.
  if build/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
    -r scripts/requirements-bench.txt; then
    cp scripts/requirements-bench.txt "$stamp"
  else
    echo "bench: the peers could not be installed; going on without them" >&2
  fi
fi
scripts/build.sh cpu-release gradsyncd bench_floor bench_echo bench_allocations
exec build/venv/bin/python tests/bench/run.py "$@"
