#!/usr/bin/env bash
# Builds the kernels, their GPU tests and benchmark, and the GPU experiments into build/gpu/bin, for GPU_ARCHITECTURES
# (default: those of Hopper); or only the targets that are named.
# The programs can be carried to another machine of this processor type.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p build
log=build/configure-gpu.log
exec 9>build/configure-gpu.lock
flock 9 # one build at a time
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
# One cache serves every checkout and build folder of this project; a bare machine has none.
launcher=$(command -v ccache || true)
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DGRADSYNC_KERNELS_ONLY=ON -DGRADSYNC_WITH_CUDA=ON \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DCMAKE_CUDA_COMPILER_LAUNCHER="$launcher" -DGRADSYNC_NVCC="$nvcc" \
  -DGRADSYNC_CUDA_ARCHITECTURES="${GPU_ARCHITECTURES:-90-real}" >"$log" 2>&1 ||
  { cat "$log" >&2 && exit 1; }
grep -i 'not found: gpu_test' "$log" || true
targets=()
[ $# -eq 0 ] || targets=(--target "$@")
cmake --build build/gpu --parallel "${JOBS:-$(nproc)}" "${targets[@]}"
