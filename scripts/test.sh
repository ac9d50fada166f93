#!/usr/bin/env bash
# `make test`: lint, build, tests and short fuzzing, which need no GPU; its last lines say what it leaves out. Ends with
# `N passed, N failed, N skipped`; exits 1 when something failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
results=build/results/test
. scripts/stages.sh
setup_or_fail

scripts/lint.sh "$results"

# Without LONG the loops for older vector units are left out, and the longest of the random worlds.
some=()
[ -n "${LONG:-}" ] || some=(--exclude-regex '\.on_(SCALAR|SSE4)$|EveryTarget/.*/(SCALAR|SSE4)( |$)|^ArenaOverNodesRandom')
if stage --name build --deadline 3600 -- scripts/build.sh cpu-release; then
  stage --name cpp --cases --again=--rerun-failed --deadline 1200 -- \
    ctest --preset cpu-release --timeout 120 "${some[@]}" --output-junit '{junit}'
fi

export GRADSYNCD="$PWD/build/cpu-release/bin/gradsyncd"
[ -n "${LONG:-}" ] || export FAULT_TIMES=${FAULT_TIMES:-2}
cores=$(nproc)
tests=("$python" -m pytest -q -rs --junitxml '{junit}')
rare=' and not rare'
[ "${LONG:-}" != all ] || rare=
selection="not long$rare"
[ -n "${LONG:-}" ] || selection+=' and not training'
side_by_side=(-n "$((cores < 4 ? cores : 4))" --dist loadfile)
quick=("${tests[@]}" -m "$selection" "${side_by_side[@]}")
long=("${tests[@]}" -m "long$rare" "${side_by_side[@]}" --timeout 400)
stage --name lint-tests --cases --again=--last-failed --deadline 300 -- "${quick[@]}" tests/lint tests/model
stage --name python --cases --again=--last-failed --deadline 1200 -- "${quick[@]}" tests/python
# torch's drop-ins with the kernels of GPUs, on an emulation whose device is the CPU.
drop_ins=(calls/test_{torch_drop_ins,norm_dtype,torch_actions,looked_at_norms}.py scale/test_loss_scale_drop_ins.py)
stage --name kernels --cases --again=--last-failed --deadline 900 -- \
  env GRADSYNC_KERNELS="$PWD/build/cpu-release/lib/libgradsync_kernels_emulated.so" \
  "${quick[@]}" "${drop_ins[@]/#/tests/python/torch/}"

# What compiles and computes, and needs nothing of the stages around it.
compute() {
  rm -f build/gpu/bundle.tar.gz
  if [ -z "$nvcc" ]; then
    echo "--- cuda: nvcc not found, the kernels were not compiled for GPUs (the emulation of them was tested)"
  elif stage --name cuda-build --deadline 3600 -- scripts/build.sh cuda-release; then
    stage --name cuda --cases --deadline 300 -- ctest --preset cuda-release --output-junit '{junit}'
    [ -z "${LONG:-}" ] || stage --name gpu-bundle --if-time --deadline 3600 -- scripts/gpu/bundle.sh
  fi
  stage --name fuzz --if-time --cases --deadline 5400 -- scripts/fuzz.sh --junit '{junit}' "${FUZZ_SECONDS:-5}"
}
nvcc=$(command -v nvcc /usr/local/cuda/bin/nvcc | head -n 1)

# Hostile clients against a daemon that notices each wrong access to memory.
attack=1
stage --name attack-build --deadline 3600 -- scripts/build.sh cpu-asan gradsyncd || attack=
# From here on tests mostly wait for a time to pass.
[ -z "${LONG:-}" ] || beside compute
stage --name integration --cases --again=--last-failed --deadline 1800 -- "${quick[@]}" tests/integration
if [ -n "$attack" ]; then
  GRADSYNCD="$PWD/build/cpu-asan/bin/gradsyncd" stage --name attack --cases --again=--last-failed --deadline 1200 -- \
    "${fixed_addresses[@]}" "${quick[@]}" -m "$selection and not release" tests/attack
  [ -z "${LONG:-}" ] || GRADSYNCD="$PWD/build/cpu-asan/bin/gradsyncd" stage --name attack-long --if-time --cases \
    --again=--last-failed --deadline 600 -- "${fixed_addresses[@]}" "${tests[@]}" -m "long and not release" tests/attack
fi
stage --name attack-release --cases --again=--last-failed --deadline 600 -- "${quick[@]}" -m "$selection and release" tests/attack
if [ -n "${LONG:-}" ]; then
  stage --name attack-release-long --if-time --cases --again=--last-failed --deadline 1200 -- \
    "${tests[@]}" -m "long and release" tests/attack
  stage --name python-long --if-time --cases --again=--last-failed --deadline 1200 -- "${long[@]}" tests/python
  stage --name integration-long --if-time --cases --again=--last-failed --deadline 1800 -- "${long[@]}" tests/integration
  stage --name page --if-time --cases --again=--last-failed --deadline 600 -- "${tests[@]}" tests/page
  stage --name deploy --if-time --cases --again=--last-failed --deadline 600 -- "${quick[@]}" tests/deploy
  if stage --name docs-site --if-time --deadline 600 -- scripts/docs.sh; then
    stage --name docs --if-time --cases --deadline 300 -- "${tests[@]}" tests/docs
  fi
  joined # what is compiled next is compiled by several stages
  stage --name dist-wheel --if-time --deadline 600 -- scripts/dist.sh
  stage --name dist-deb --if-time --deadline 600 -- scripts/deb.sh
  stage --name dist --if-time --cases --again=--last-failed --deadline 2400 -- "${tests[@]}" -m "not long$rare" tests/dist
  # What is carried to a machine with a GPU must start there.
  [ ! -f build/gpu/bundle.tar.gz ] || stage --name gpu-bundle-tests --if-time --cases --deadline 600 -- \
    "${tests[@]}" -p no:cacheprovider tests/gpu
  not_run=${rare:+"tests marked rare (LONG=all make test), "}
else
  not_run="tests marked long or training, loops for older vector units, faults more often than $FAULT_TIMES times, the page in a browser, what is in deploy/, the site of the docs, the wheel, the Debian package, the images and the archive for GPU machines (LONG=1 make test), "
fi
[ -n "${LONG:-}" ] || compute

echo
echo "make test does not run: ${not_run}sanitizers of the C++ tests (make sanitize), fuzzers for longer than ${FUZZ_SECONDS:-5} s each (make fuzz),"
echo "benchmarks (make bench), planted faults (make mutants), tests on a GPU (make gpu-test)."
cuda=()
[ -z "$nvcc" ] || cuda=(--require cuda-build --require cuda)
finish "${cuda[@]}" --require lint- --require build --require cpp --require lint-tests --require python --require kernels --require integration --require attack --require attack-release --require fuzz
