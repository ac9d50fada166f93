#!/usr/bin/env bash
# `make attack`: hostile clients, each for so many seconds, against a daemon under ASan and UBSan: attack.sh [SECONDS].
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/stages.sh
scripts/build.sh cpu-asan gradsyncd
scripts/build.sh cpu-release gradsyncd
export ATTACK_SECONDS=${1:-60}
tests=("$python" -m pytest -q -rs --timeout "$((ATTACK_SECONDS * 10 + 120))")
GRADSYNCD=$PWD/build/cpu-release/bin/gradsyncd "${tests[@]}" -m release tests/attack
export GRADSYNCD=$PWD/build/cpu-asan/bin/gradsyncd
exec "${fixed_addresses[@]}" "${tests[@]}" -m "not release" tests/attack
