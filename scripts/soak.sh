#!/usr/bin/env bash
# `make soak`: two jobs over three daemons under faults at random, for so many seconds: soak.sh [SECONDS [SEED]].
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh cpu-release gradsyncd
exec build/venv/bin/python tests/soak/soak.py --seconds "${1:-3600}" ${2:+--seed "$2"}
