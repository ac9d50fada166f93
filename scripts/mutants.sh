#!/usr/bin/env bash
# `make mutants`: plants faults in a copy of the tree, one at a time, and looks which test notices: mutants.sh [ID...]
# What was planted and caught is in build/mutants/report.json. With JOBS=1 it leaves a core for others.
set -euo pipefail
cd "$(dirname "$0")/.."
python=build/venv/bin/python
"$python" tests/mutants/run.py --copy "$@"
targets=$("$python" tests/mutants/run.py --targets "$@")
read -ra targets <<<"$targets"
build/mutants/tree/scripts/build.sh cpu-release "${targets[@]}"
exec "$python" tests/mutants/run.py "$@"
