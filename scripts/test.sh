#!/usr/bin/env bash
# `make test`: every check that needs no GPU. Ends with `N passed, N failed, N skipped`; exits 1 when something failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
results=build/results/test
. scripts/stages.sh
setup_or_fail

scripts/lint.sh "$results"

if stage --name build --deadline 3600 -- scripts/build.sh cpu-release; then
  stage --name cpp --cases --again=--rerun-failed --deadline 1200 -- \
    ctest --preset cpu-release --timeout 120 --output-junit '{junit}'
fi

export GRADSYNCD="$PWD/build/cpu-release/bin/gradsyncd"
cores=$(nproc)
tests=("$python" -m pytest -q -rs --junitxml '{junit}')
selection='not long and not training'
[ -z "${LONG:-}" ] || selection='not long'
quick=("${tests[@]}" -m "$selection" -n "$((cores < 4 ? cores : 4))" --dist loadfile)
stage --name lint-tests --cases --again=--last-failed --deadline 300 -- "${quick[@]}" tests/lint
stage --name python --cases --again=--last-failed --deadline 1200 -- "${quick[@]}" tests/python
# torch's drop-ins with the kernels of GPUs, on an emulation whose device is the CPU.
drop_ins=(test_torch_drop_ins.py test_loss_scale_drop_ins.py test_norm_dtype.py test_torch_actions.py test_looked_at_norms.py)
stage --name kernels --cases --again=--last-failed --deadline 900 -- \
  env GRADSYNC_KERNELS="$PWD/build/cpu-release/lib/libgradsync_kernels_emulated.so" \
  "${quick[@]}" "${drop_ins[@]/#/tests/python/torch/}"
stage --name integration --cases --again=--last-failed --deadline 1200 -- "${quick[@]}" tests/integration
# Hostile clients against a daemon that notices each wrong access to memory.
if stage --name attack-build --deadline 3600 -- scripts/build.sh cpu-asan gradsyncd; then
  GRADSYNCD="$PWD/build/cpu-asan/bin/gradsyncd" stage --name attack --cases --again=--last-failed --deadline 1200 -- \
    "${fixed_addresses[@]}" "${quick[@]}" --ignore tests/attack/test_memory.py tests/attack
fi
# ASan keeps what was freed, and its daemon reads too slowly to be filled.
stage --name attack-memory --cases --again=--last-failed --deadline 600 -- "${quick[@]}" tests/attack/test_memory.py
if [ -n "${LONG:-}" ]; then
  stage --name python-long --cases --again=--last-failed --deadline 1200 -- "${tests[@]}" -m long tests/python
  stage --name integration-long --cases --again=--last-failed --deadline 1800 -- "${tests[@]}" -m long tests/integration
  stage --name dist-wheel --deadline 600 -- scripts/dist.sh
  stage --name dist-deb --deadline 600 -- scripts/deb.sh
  stage --name dist --cases --again=--last-failed --deadline 2400 -- "${tests[@]}" tests/dist
  not_run=
else
  not_run="tests marked long or training, the wheel and the Debian package (LONG=1 make test), "
fi
stage --name fuzz --cases --deadline 3600 -- scripts/fuzz.sh --junit '{junit}' "${FUZZ_SECONDS:-5}"

if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  echo "--- cuda: nvcc not found, the kernels were not compiled for GPUs (the emulation of them was tested)"
elif stage --name cuda-build --deadline 2400 -- scripts/build.sh cuda-release; then
  stage --name cuda --cases --deadline 300 -- ctest --preset cuda-release --output-junit '{junit}'
fi

echo
echo "make test does not run: ${not_run}sanitizers of the C++ tests (make sanitize), fuzzers for longer than ${FUZZ_SECONDS:-5} s each (make fuzz),"
echo "benchmarks (make bench), planted faults (make mutants), tests on a GPU (make gpu-test)."
finish --require lint- --require build --require cpp --require lint-tests --require python --require kernels --require integration --require attack --require fuzz
