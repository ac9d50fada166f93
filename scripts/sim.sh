#!/usr/bin/env bash
# `make sim`: one job over many daemons under faults, on a virtual clock; build/sim/report.json has what was found.
# SEED=n replays one world of 8 daemons and says what happens in it; with DAEMONS=4096 one of 4,096. Where n is odd,
# and there are 8 daemons, gradients travel between them: by communicators where n is 3, 7, 11, ..., of several GPUs of
# 2 or 4 nodes where it is 3, 11, 19, ..., else over sockets.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh cpu-release gradsync_sim | tail -n 1
mkdir -p build/sim
worlds=()
if [ -n "${SEED:-}" ]; then
  worlds=(--first "$SEED" --seeds 1 --many-seeds 0 --say-all 1)
  [ "${DAEMONS:-8}" = 8 ] || worlds=(--first "$SEED" --seeds 0 --many-seeds 1 --many-daemons "$DAEMONS" --say-all 1)
fi
exec build/cpu-release/bin/gradsync_sim --out build/sim/report.json "${worlds[@]}"
