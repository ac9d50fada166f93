#!/usr/bin/env bash
# `make attack`: hostile clients, each for so many seconds, against a daemon under ASan and UBSan: attack.sh [SECONDS].
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh cpu-asan gradsyncd
export ATTACK_SECONDS=${1:-60} GRADSYNCD=$PWD/build/cpu-asan/bin/gradsyncd
# The sanitizers of GCC 12 cannot place their shadow memory beside the address randomisation of newer kernels.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
  fixed_addresses=(setarch "$(uname -m)" -R)
fi
exec "${fixed_addresses[@]}" build/venv/bin/python -m pytest -q -rs --timeout "$((ATTACK_SECONDS * 10 + 120))" tests/attack
