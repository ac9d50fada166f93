#!/usr/bin/env bash
# `make gpu-test`: the kernels' tests on a GPU, and a part of them under each tool of compute-sanitizer, where it is there.
# Leaves raw output in $OUT (default build/results/gpu). Without a GPU every test skips with its reason.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. scripts/gpu/programs.sh
gpu_programs

gpu_machine

[ -x "$programs/gpu_test" ] || {
  echo "gpu: $programs/gpu_test is not there: GoogleTest was not found when it was built (carry one that was built with it)" >&2
  exit 69
}
limited 150 gpu_test "$programs/gpu_test" --gtest_brief=1 --gtest_output="xml:$out/gpu_test.xml"
! nvidia-smi -L >/dev/null 2>&1 || saw_device gpu_test

if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu: no GPU (nvidia-smi lists none): every test skipped, nothing was tested"
elif ! command -v compute-sanitizer >/dev/null; then
  echo "gpu: compute-sanitizer not found; it was not run"
else
  for tool in memcheck racecheck synccheck initcheck; do
    limited 90 "sanitizer_$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 \
      "$programs/gpu_test" --gtest_brief=1 --gtest_filter="$watched_tests"
    saw_device "sanitizer_$tool"
  done
  # Few files are easier to carry.
  tail -n +1 "$out"/sanitizer_*.log >"$out/sanitizer.log" && rm "$out"/sanitizer_*.log
fi
gpu_verdict
