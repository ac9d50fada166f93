#!/usr/bin/env bash
# `make attack`: hostile clients, each for so many seconds, against a daemon under ASan and UBSan: attack.sh [SECONDS].
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/stages.sh
scripts/build.sh cpu-asan gradsyncd
export ATTACK_SECONDS=${1:-60} GRADSYNCD=$PWD/build/cpu-asan/bin/gradsyncd
exec "${fixed_addresses[@]}" "$python" -m pytest -q -rs --timeout "$((ATTACK_SECONDS * 10 + 120))" tests/attack
