# shellcheck shell=bash
# Sourced by gpu_test.sh and gpu_bench.sh, which run on a bare machine: a driver, bash, and either programs that were
# built elsewhere (build/gpu/bin: linked statically but for the C library) or nvcc, CMake and Ninja.
out=${OUT:-build/results/gpu}
programs=${GPU_PROGRAMS:-build/gpu/bin}
mkdir -p "$out"

# Builds the programs unless those that are there start. For the GPU of this machine; without one for sm_90.
gpu_programs() {
  if "$programs/gpu_test" --gtest_list_tests >/dev/null 2>&1 && [ -x "$programs/gpu_bench" ]; then
    echo "gpu: programs from $programs"
    return
  fi
  local nvcc architectures=90-real
  nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) || {
    echo "gpu: no programs in $programs and no nvcc to build them (build them elsewhere: scripts/gpu_build.sh)" >&2
    exit 69
  }
  ! nvidia-smi -L >/dev/null 2>&1 || architectures=native
  GPU_ARCHITECTURES=$architectures NVCC=$nvcc scripts/gpu_build.sh || exit 1
  programs=build/gpu/bin
}

# limited SECONDS NAME COMMAND...: its output in $out/NAME.log, the end of it shown. Remembers failures in `failed`.
failed=()
limited() {
  local seconds=$1 name=$2 began=$SECONDS code=0
  shift 2
  timeout "$seconds" "$@" >"$out/$name.log" 2>&1 || code=$?
  tail -40 "$out/$name.log"
  case $code in
  0) echo "gpu: $name passed in $((SECONDS - began)) s" ;;
  124) echo "gpu: $name did not end within $seconds s" && failed+=("$name") ;;
  *) echo "gpu: $name failed with $code after $((SECONDS - began)) s" && failed+=("$name") ;;
  esac
}

# The exit status of the script, with the list of what failed.
gpu_verdict() {
  echo "gpu: raw output in $out"
  [ ${#failed[@]} -eq 0 ] || {
    echo "gpu: FAILED: ${failed[*]}"
    exit 1
  }
}
