#!/usr/bin/env bash
# `make fuzz`: builds every fuzzer (preset cpu-fuzz) and runs each for a while: fuzz.sh [SECONDS] [FUZZER...]
# What they learn is kept in build/cpu-fuzz/corpus; an input that breaks something lies in build/cpu-fuzz/crashes.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift $(($# > 0 ? 1 : 0))
if ! command -v clang++-16 >/dev/null; then
  echo "fuzz: clang++-16 is missing; on Debian 12: apt-get install clang-16 libclang-rt-16-dev" >&2
  exit 69
fi
fuzzers=("$@")
[ ${#fuzzers[@]} -gt 0 ] || fuzzers=(rpc_fuzz http_fuzz config_fuzz)
scripts/build.sh cpu-fuzz "${fuzzers[@]}"

build=build/cpu-fuzz
mkdir -p "$build/crashes"
export UBSAN_OPTIONS=print_stacktrace=1
for fuzzer in "${fuzzers[@]}"; do
  echo "--- $fuzzer for $seconds s"
  mkdir -p "$build/corpus/$fuzzer"
  # The daemon logs what it is asked; stderr is the fuzzer's.
  "$build/bin/$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$build/crashes/$fuzzer-" "$build/corpus/$fuzzer" "tests/fuzz/${fuzzer%_fuzz}_corpus" >/dev/null
done
echo "fuzz: nothing broke in $seconds s each of: ${fuzzers[*]}"
