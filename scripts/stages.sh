# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by the scripts that run stages, which set `results` and use `python`. Each stage leaves a JUnit file in
# `results`, and `finish` adds them up. A failed stage does not end the run: later ones still tell what they can.
python=build/venv/bin/python

# A check whose machine cannot be set up reports one failure.
setup_or_fail() {
  rm -rf "$results"
  mkdir -p "$results"
  if ! scripts/setup.sh </dev/null; then
    echo "failed: scripts/setup.sh"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
  fi
}

stage() {
  [ -z "${beside_pid:-}" ] || kill -0 "$beside_pid" 2>/dev/null || exit # the script was killed
  python3 scripts/stage.py --results "$results" "$@"
}

# beside FUNCTION: its stages run at the lowest priority, beside stages that mostly wait for a
# time to pass; they end with this script. `joined` waits for them, and prints what they said.
beside() {
  set -m # a process group of its own, which `kill` reaches as a whole
  (
    beside_pid=$$
    renice -n 19 -p "$BASHPID" >/dev/null
    "$@"
  ) >"$results/beside.log" 2>&1 </dev/null &
  background=$!
  set +m
  trap 'kill -TERM -- -"$background" 2>/dev/null' EXIT
}

joined() {
  local code=0
  wait "$background" || code=$?
  trap - EXIT
  cat "$results/beside.log"
  # Failed stages have written their files; one that was killed has not.
  [ "$code" -lt 128 ] || stage --name beside -- sh -c "exit $code"
}

finish() {
  echo
  python3 scripts/summary.py "$results" "$@"
}

# The sanitizers of GCC 12 cannot place their shadow memory beside the address randomisation of newer kernels.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
  fixed_addresses=(setarch "$(uname -m)" -R)
fi

# Files that git tracks and that are still there, one per line.
tracked() {
  git -c safe.directory="$PWD" ls-files -- "$@" | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}
