#!/usr/bin/env bash
# `make gpu-bench`: the kernels against a copy of the same bytes, against torch in one process, and a profile by ncu,
# each where its tool is there. Leaves raw output in $OUT (default build/results/gpu). Needs a GPU.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. scripts/gpu/programs.sh
nvidia-smi -L || {
  echo "gpu: no GPU (nvidia-smi lists none); nothing was measured" >&2
  exit 69
}
gpu_programs
gpu_machine

limited 90 gpu_bench "$programs/gpu_bench" --json "$out/gpu_bench.json"

if "$python" -c 'import torch' 2>/dev/null; then
  limited 150 gpu_bench_torch "$python" tests/gpu/bench_torch.py --library "$programs/libgpu_bench_library.so" \
    --json "$out/gpu_bench_torch.json"
  # Few files are easier to carry.
  cat "$out/gpu_bench_torch.log" >>"$out/gpu_bench.log" && rm "$out/gpu_bench_torch.log"
else
  echo "gpu: $python has no torch; not compared"
fi

if command -v ncu >/dev/null; then
  metrics=gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
  metrics+=,lts__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed
  metrics+=,sm__inst_executed.avg.per_cycle_active,sm__warps_active.avg.pct_of_peak_sustained_active
  metrics+=,smsp__issue_active.avg.pct_of_peak_sustained_active,launch__registers_per_thread
  limited 120 profile ncu --clock-control none --csv --page raw --metrics "$metrics" "$programs/gpu_bench" --case a,c --once
  # The profile above flushes the caches before each kernel. What a pass finds in the L2 cache of the one before it shows
  # only without that, and with no more counters than one run of a kernel fills.
  metrics=gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum
  limited 60 profile_warm ncu --clock-control none --cache-control none --csv --page raw --metrics "$metrics" \
    "$programs/gpu_bench" --case b,c --once
  { echo "--cache-control none:" && cat "$out/profile_warm.log"; } >>"$out/profile.log" && rm "$out/profile_warm.log"
else
  echo "gpu: ncu not found; no profile"
fi
gpu_verdict
