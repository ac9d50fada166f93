#!/usr/bin/env bash
# Builds the fuzzers (preset cpu-fuzz) and runs each for a while, as many at once as there are cores.
#   fuzz.sh [SECONDS] [FUZZER...]    `make fuzz`
#   fuzz.sh --junit FILE SECONDS     `make test`: a machine without clang 16 skips them; with one seed, so that runs begin
#                                    alike (what is learnt from them depends on their timing)
# What they learn is kept in build/fuzz/corpus; an input that breaks something lies in build/fuzz/crashes.
set -euo pipefail
cd "$(dirname "$0")/.."
junit=
if [ "${1:-}" = --junit ]; then
  junit=$2
  shift 2
fi
seconds=${1:-60}
shift $(($# > 0 ? 1 : 0))

missing=
if ! command -v clang++-16 >/dev/null; then
  missing="clang++-16 is missing"
elif [ ! -e "$(clang++-16 -print-file-name="libclang_rt.fuzzer-$(uname -m).a")" ]; then
  missing="the libFuzzer of clang 16 is missing"
fi
if [ -n "$missing" ]; then
  missing="$missing; on Debian 12: apt-get install clang-16 libclang-rt-16-dev"
  [ -n "$junit" ] || { echo "fuzz: $missing" >&2; exit 69; }
  exec python3 scripts/fuzz.py --skip "$missing" --junit "$junit"
fi

fuzzers=("$@")
[ ${#fuzzers[@]} -gt 0 ] || fuzzers=(fuzzers)
begin=$SECONDS
scripts/build.sh cpu-fuzz "${fuzzers[@]}" >build/fuzz-build.log 2>&1 || { cat build/fuzz-build.log >&2; exit 1; }
echo "fuzz: built in $((SECONDS - begin)) s"
exec python3 scripts/fuzz.py --seconds "$seconds" ${junit:+--seed 1 --junit "$junit"} "$@"
