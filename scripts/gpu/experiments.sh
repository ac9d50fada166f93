#!/usr/bin/env bash
# `make gpu-experiments`: the programs of tests/gpu/experiments, one question each, in less than 10 minutes in all; goes on
# when one fails. ONLY="memop_flags …" runs some. Leaves one JSON line per part in ${OUT:-build/gpu}/experiments.jsonl and
# what is no result in experiments.log. Ends with `N answered, N failed, N skipped` (parts), and 1 when one failed. Without
# a GPU each program says so. `--limits` says how many seconds each program may take.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# Those that decide most come first: what begins after the end is skipped. The seconds of all are less than ten minutes, so
# that none takes another's time; each program ends by itself some seconds earlier.
order=(ipc_memory memop_flags torch_memory nccl_one_gpu two_processes empty_step)
declare -A limits=([ipc_memory]=85 [memop_flags]=125 [torch_memory]=100 [nccl_one_gpu]=95 [two_processes]=120 [empty_step]=45)
if [ "${1:-}" = --limits ]; then
  for name in "${order[@]}"; do
    echo "$name ${limits[$name]}"
  done
  exit 0
fi
OUT=${OUT:-build/gpu}
. scripts/gpu/programs.sh
results=$out/experiments.jsonl
log=$out/experiments.log
end=$((SECONDS + ${BUDGET_SECONDS:-570}))

# Programs that were carried here count when they start; an argument that they do not know ends them with 64.
carried() {
  local code=0
  ! can_build_again && { "$programs/experiment_ipc_memory" --starts >/dev/null 2>&1 || code=$?; } && [ $code -eq 64 ]
}

programs_or_fail() {
  local nvcc architectures=90-real
  if carried; then
    echo "gpu: programs from $programs"
    return
  fi
  nvcc=$(command -v nvcc) || {
    echo "gpu: no programs in $programs and no nvcc to build them (build them elsewhere: scripts/gpu/build.sh)" >&2
    exit 69
  }
  ! nvidia-smi -L >/dev/null 2>&1 || architectures=native
  local targets=("${order[@]/#/experiment_}")
  GPU_ARCHITECTURES=$architectures NVCC=$nvcc scripts/gpu/build.sh "${targets[@]/%experiment_torch_memory/experiment_frame}" ||
    exit 1
  programs=build/gpu/bin
}

# run SECONDS NAME COMMAND...: adds its lines to the results; one more when it ended without saying why.
run() {
  local seconds=$1 name=$2 began=$SECONDS left=$((end - SECONDS)) before code=0 why
  shift 2
  [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $name "* ]] || return 0
  before=$(wc -l <"$results")
  if [ "$left" -lt 10 ]; then
    printf '{"experiment": "%s", "skipped": "the time of all experiments was used up"}\n' "$name" >>"$results"
    return
  fi
  [ "$seconds" -lt "$left" ] || seconds=$left
  echo "--- $name" >>"$log"
  timeout -k 5 "$seconds" "$@" >>"$results" 2>>"$log" </dev/null || code=$?
  case $code in
  0 | 1) why="the program ended with $code and said nothing" ;;
  124 | 137) why="not done within $seconds s; the parts after the last line were not run" ;;
  *) why="the program ended with $code; the parts after the last line were not run" ;;
  esac
  if [ $code -gt 1 ] || [ "$(wc -l <"$results")" -eq "$before" ]; then
    printf '{"experiment": "%s", "failed": "%s"}\n' "$name" "$why" >>"$results"
  fi
  tail -n +$((before + 1)) "$results"
  echo "gpu: $name took $((SECONDS - began)) s"
}

programs_or_fail
gpu_machine >/dev/null
: >"$results"
: >"$log"
GRADSYNC_NCCL=${GRADSYNC_NCCL:-$(library_of_torch libnccl.so.2)}
GRADSYNC_CUBLAS=${GRADSYNC_CUBLAS:-$(library_of_torch libcublas.so.13)}
# Empty would be the name of a library.
[ -z "$GRADSYNC_NCCL" ] || export GRADSYNC_NCCL
[ -z "$GRADSYNC_CUBLAS" ] || export GRADSYNC_CUBLAS
export PYTHONUNBUFFERED=1

for name in "${order[@]}"; do
  seconds=${limits[$name]}
  if [ "$name" = torch_memory ]; then
    run "$seconds" "$name" "$python" tests/gpu/experiments/torch_memory.py
  else
    run "$seconds" "$name" "$programs/experiment_$name"
  fi
done

lines=$(wc -l <"$results")
failed_lines=$(grep -c '"failed": ' "$results")
skipped=$(grep -c '"skipped": ' "$results")
echo "gpu: raw output in $results"
echo "$((lines - failed_lines - skipped)) answered, $failed_lines failed, $skipped skipped"
[ "$failed_lines" -eq 0 ]
