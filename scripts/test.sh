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

if ! compgen -G 'kernels/*.cu' >/dev/null; then
  echo "--- cuda: no CUDA sources yet, nothing to compile"
elif ! command -v nvcc >/dev/null; then
  echo "--- cuda: nvcc not found, the CUDA sources were not compiled"
else
  stage --name cuda -- nvcc -std=c++20 -I service -I . --fatbin -arch=all-major --output-directory build kernels/*.cu
fi

finish --require lint- --require build --require cpp --require lint-tests --require python --require integration
