#!/usr/bin/env bash
# `make test`: every check that needs no GPU. Ends with `N passed, N failed, N skipped`; exits 1 when something failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
results=build/results/test
. scripts/stages.sh
setup_or_fail

scripts/lint.sh "$results"

if stage --name build --deadline 3600 -- scripts/build.sh cpu-release; then
  stage --name cpp --cases --deadline 1200 -- \
    ctest --preset cpu-release --timeout 120 --output-junit '{junit}'
fi

export GRADSYNCD="$PWD/build/cpu-release/bin/gradsyncd"
stage --name lint-tests --cases --deadline 300 -- "$python" -m pytest -q -rs --junitxml '{junit}' tests/lint
stage --name python --cases --deadline 1200 -- "$python" -m pytest -q -rs --junitxml '{junit}' tests/python
stage --name integration --cases --deadline 1800 -- "$python" -m pytest -q -rs --junitxml '{junit}' tests/integration
stage --name fuzz --cases --deadline 3600 -- scripts/fuzz.sh --junit '{junit}' "${FUZZ_SECONDS:-60}"

if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  echo "--- cuda: nvcc not found, the kernels were not compiled for GPUs (the emulation of them was tested)"
elif stage --name cuda-build --deadline 2400 -- scripts/build.sh cuda-release; then
  stage --name cuda --cases --deadline 300 -- ctest --preset cuda-release --output-junit '{junit}'
fi

finish --require lint- --require build --require cpp --require lint-tests --require python --require integration --require fuzz
