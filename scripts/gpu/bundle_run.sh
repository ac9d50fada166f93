#!/usr/bin/env bash
# run.sh of the archive that scripts/gpu/bundle.sh packs: what a GPU is asked, part by part, in at most ten minutes in
# all; goes on when a part fails. Needs a driver and bash; parts whose tools are missing are skipped. Leaves in $OUT
# (default: results, beside this file) machine.txt, run.log and results.tar.gz, the raw output, which is packed again
# after each part. `--limits` says how long each part may take. Ends with `N passed, N failed, N skipped` (parts), and 1
# when one failed; with 69 where there is no GPU.
set -uo pipefail

# Seconds for each part, in their order. The last takes what the others leave, and this at least.
parts=(kernels memcheck lanes bench torch clip trainers nodes experiments)
declare -A limits=(
  [kernels]=65 [memcheck]=50 [lanes]=65 [bench]=55 [torch]=50 [clip]=50 [trainers]=65 [nodes]=70 [experiments]=45
)
looks=20 # seconds for a look at python's torch
packs=20 # for everything that is no part

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit
results=$(realpath -m "${OUT:-$folder/results}")
cd "$folder" || exit
export OUT=$folder/build/raw
. scripts/gpu/programs.sh || exit
libraries=$folder/build/gpu/lib
kernels=$libraries/libgradsync_kernels.so

total=$((looks + packs))
for name in "${parts[@]}"; do
  total=$((total + limits[$name] + ends))
done
if [ "${1:-}" = --limits ]; then
  for name in "${parts[@]}"; do
    echo "$name ${limits[$name]}"
  done
  echo "total $total"
  exit 0
fi

nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || {
  echo "gpu: no GPU (nvidia-smi lists none); nothing was run" >&2
  exit 69
}

passed=0
skipped=0

pack() {
  tar -czf "$results/results.tar.gz.new" -C "$OUT" . && mv "$results/results.tar.gz.new" "$results/results.tar.gz"
}

# part NAME COMMAND...
part() {
  local name=$1 before=${#failed[@]} seconds=${limits[$1]}
  shift
  [ "$name" != experiments ] || seconds=$left
  echo "--- $name"
  limited "$seconds" "$name" "$@"
  case $name in
  kernels | memcheck) [ ${#failed[@]} -ne "$before" ] || saw_device "$name" ;;
  esac
  [ ${#failed[@]} -ne "$before" ] || passed=$((passed + 1))
  pack
}

# skip NAME WHY...
skip() {
  echo "--- $1"
  echo "gpu: $1 skipped: ${*:2}"
  skipped=$((skipped + 1))
}

# With the libraries of the archive that Linux distributions do not all have; the others need none of them.
with_libraries=(env LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")

of_client=("${with_libraries[@]}" GRADSYNCD="$folder/$programs/gradsyncd"
  PYTHONPATH="$folder/clients/python/src:$folder/python")

run_all() {
  local asked said no_torch='' gpu nccl
  gpu_machine
  {
    cat COMMIT
    sha256sum --check --quiet SHA256SUMS && echo "every file of the archive is as it was packed"
    sha256sum "$libraries"/*
    getconf GNU_LIBC_VERSION
    "$python" --version
  } 2>&1 | tee -a "$OUT/machine.txt"
  asked='import numpy, torch; print("torch", torch.__version__); torch.cuda.is_available() or exit("torch sees no GPU")'
  said=$(timeout -k 1 $((looks - 1)) "$python" -c "$asked" 2>&1) || no_torch="${said##*$'\n'} ($python ended with $?)"
  echo "$said" >>"$OUT/machine.txt"
  cp "$OUT/machine.txt" "$results"

  part kernels "$programs/gpu_test" --gtest_output="xml:$OUT/kernels.xml"
  if command -v compute-sanitizer >/dev/null; then
    part memcheck compute-sanitizer --tool memcheck --error-exitcode 9 --print-limit 20 \
      "$programs/gpu_test" --gtest_brief=1 --gtest_filter="$watched_tests"
  else
    skip memcheck "compute-sanitizer not found"
  fi
  # The tests of memory that another process exports need memory of the emulation.
  part lanes "${with_libraries[@]}" GRADSYNC_KERNELS="$kernels" "$programs/lane_conformance_test" \
    --gtest_filter='GpuLane.*:RandomWorlds.*:*LaneConformance.*' --gtest_output="xml:$OUT/lanes.xml"
  part bench "$programs/gpu_bench" --json "$OUT/gpu_bench.json"
  if [ -n "$no_torch" ]; then
    skip torch "$no_torch"
    skip clip "$no_torch"
    skip trainers "$no_torch"
    skip nodes "$no_torch"
  else
    part torch "$python" tests/gpu/bench_torch.py --library "$programs/libgpu_bench_library.so" \
      --json "$OUT/gpu_bench_torch.json"
    part clip "${of_client[@]}" "$python" tests/gpu/bench_clip.py --kernels "$kernels" --json "$OUT/gpu_bench_clip.json"
    gpu=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -1)
    part trainers "${of_client[@]}" "$python" tests/gpu/trainers.py --gpu "$gpu" --kernels "$kernels" --worlds 2,4 \
      --json "$OUT/trainers.json"
    nccl=${GRADSYNC_NCCL:-$(library_of_torch libnccl.so.2)}
    if [ -n "$nccl" ]; then
      part nodes "${of_client[@]}" "$python" tests/gpu/node_trainers.py --gpu "$gpu" --kernels "$kernels" \
        --nccl "$nccl" --json "$OUT/nodes.json"
    else
      skip nodes "$python has no libnccl.so.2 beside torch (GRADSYNC_NCCL names one)"
    fi
  fi
  # It ends by itself before it is ended.
  left=$((total - packs / 2 - ends - SECONDS))
  part experiments env OUT="$OUT/experiments" BUDGET_SECONDS=$((left - 10)) scripts/gpu/experiments.sh

  [ ${#failed[@]} -eq 0 ] || echo "gpu: FAILED: ${failed[*]}"
  echo "gpu: raw output in $results"
  echo "$passed passed, ${#failed[@]} failed, $skipped skipped"
  [ ${#failed[@]} -eq 0 ]
}

rm -rf "$OUT"
mkdir -p "$OUT" "$results"
run_all 2>&1 | tee "$results/run.log"
exit "${PIPESTATUS[0]}"
