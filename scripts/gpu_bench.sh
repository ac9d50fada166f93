#!/usr/bin/env bash
# `make gpu-bench`: the kernels against a copy of the same bytes, against torch in one process, and a profile by ncu,
# each where its tool is there. Leaves raw output in $OUT (default build/results/gpu). Needs a GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/gpu_programs.sh
nvidia-smi -L || {
  echo "gpu: no GPU (nvidia-smi lists none); nothing was measured" >&2
  exit 69
}
gpu_programs

limited 90 gpu_bench "$programs/gpu_bench" --json "$out/gpu_bench.json"

python=${PYTHON:-python3}
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
else
  echo "gpu: ncu not found; no profile"
fi
gpu_verdict
