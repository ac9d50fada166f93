#!/usr/bin/env bash
# Configures and builds one preset: build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
log=build/configure-$preset.log
mkdir -p build
exec 9>"build/configure-$preset.lock"
flock -n 9 || { # one build of a preset at a time
  echo "build.sh: waiting for another build of $preset" >&2
  flock 9
}
# One cache serves every checkout and build folder of this project.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}" ${1:+--target "$@"}
