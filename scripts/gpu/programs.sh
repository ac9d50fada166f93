# shellcheck shell=bash
# Sourced by the scripts that run on a bare machine with a GPU: a driver, bash, and either programs that were built
# elsewhere (build/gpu/bin: linked statically but for the C library) or nvcc, CMake and Ninja.
out=${OUT:-build/results/gpu}
programs=${GPU_PROGRAMS:-build/gpu/bin}
python=${PYTHON:-python3}
mkdir -p "$out"
# Where the toolkit puts nvcc, compute-sanitizer and ncu, which is not in every PATH.
PATH=$PATH:/usr/local/cuda/bin

# Whether this checkout built build/gpu and can do so again: its programs may be older than the sources.
can_build_again() {
  [ -z "${GPU_PROGRAMS:-}" ] && grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" build/gpu/CMakeCache.txt 2>/dev/null &&
    command -v nvcc >/dev/null && command -v cmake >/dev/null && command -v ninja >/dev/null
}

# Builds the programs unless those that are there were carried here and start. For the GPU of this machine; without one
# for sm_90.
gpu_programs() {
  if ! can_build_again && "$programs/gpu_test" --gtest_list_tests >/dev/null 2>&1 && [ -x "$programs/gpu_bench" ]; then
    echo "gpu: programs from $programs"
    return
  fi
  local nvcc architectures=90-real
  nvcc=$(command -v nvcc) || {
    echo "gpu: no programs in $programs and no nvcc to build them (build them elsewhere: scripts/gpu/build.sh)" >&2
    exit 69
  }
  ! nvidia-smi -L >/dev/null 2>&1 || architectures=native
  GPU_ARCHITECTURES=$architectures NVCC=$nvcc scripts/gpu/build.sh || exit 1
  programs=build/gpu/bin
}

# The first file of that name in the packages that torch brings its libraries in.
library_of_torch() {
  "$python" - "$1" <<'PYTHON' 2>/dev/null
import glob, sys
found = [path for place in sys.path for path in glob.glob(f"{place}/nvidia/*/lib/{sys.argv[1]}")]
print(*found[:1])
PYTHON
}

# Describes the machine of the figures, in $out/machine.txt.
gpu_machine() {
  {
    date -u +%FT%TZ
    uname -srm
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit --format=csv 2>&1
    nvcc --version 2>&1 | tail -2
    sha256sum "$programs"/*
  } >"$out/machine.txt"
  cat "$out/machine.txt"
}

# The tests that a tool which watches each access gets through, by their sizes: every dtype and power, fingerprints,
# misaligned tensors, second rounds, records added by warps and by blocks, every cast.
# shellcheck disable=SC2034
watched_tests='*groups*:*overflow_is_found*:*gathered*:*tensors_are_packed*:*large_rows*:*touches_only*:*strictly*'
watched_tests+=':*few_and_of_many*:*depend_on_alignment*:*one_ulp*:*casts_between*:*nothing_to*'

# limited SECONDS NAME COMMAND...: its output in $out/NAME.log, the end of it shown. Remembers failures in `failed`.
failed=()
ends=5 # seconds that a command has to end after it was told to; then it is killed
limited() {
  local seconds=$1 name=$2 began=$SECONDS code=0
  shift 2
  timeout -k "$ends" "$seconds" "$@" >"$out/$name.log" 2>&1 || code=$?
  tail -40 "$out/$name.log"
  case $code in
  0) echo "gpu: $name passed in $((SECONDS - began)) s" ;;
  124) echo "gpu: $name did not end within $seconds s" && failed+=("$name") ;;
  137) echo "gpu: $name was killed after $((SECONDS - began)) s, of $seconds" && failed+=("$name") ;;
  *) echo "gpu: $name failed with $code after $((SECONDS - began)) s" && failed+=("$name") ;;
  esac
}

# Beside a GPU, tests that skip because the runtime does not see it (a driver older than CUDA 13, say) have not passed.
saw_device() {
  ! grep -q 'no CUDA device' "$out/$1.log" || {
    echo "gpu: $1 tested nothing, although nvidia-smi lists a GPU: $(grep -m 1 'no CUDA device' "$out/$1.log")"
    failed+=("$1")
  }
}

# The exit status of the script, with the list of what failed.
gpu_verdict() {
  echo "gpu: raw output in $out"
  [ ${#failed[@]} -eq 0 ] || {
    echo "gpu: FAILED: ${failed[*]}"
    exit 1
  }
}
