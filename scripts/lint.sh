#!/usr/bin/env bash
# Everything about the sources that needs no build: lint.sh [RESULTS]. Called by `make lint` and `make test`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
results=${1:-build/results/lint}
. scripts/stages.sh
[ $# -gt 0 ] || rm -rf "$results"

tracked '*.cpp' '*.hpp' '*.cu' '*.cuh' >build/lint-cpp.txt
tracked '*.sh' .ci/run deploy/debian/postinst deploy/debian/postrm deploy/debian/prerm deploy/slurm/gradsync.sbatch >build/lint-shell.txt

stage --name lint-layers -- "$python" tests/lint/check_layers.py
stage --name lint-clang-format -- xargs -a build/lint-cpp.txt clang-format-16 --dry-run -Werror
stage --name lint-ruff -- "$python" -m ruff check clients scripts tests
stage --name lint-ruff-format -- "$python" -m ruff format --check clients scripts tests
stage --name lint-mypy -- env -C clients/python ../../build/venv/bin/python -m mypy --cache-dir ../../build/mypy_cache
stage --name lint-protocol -- "$python" tests/contract/update_protocol.py --check
stage --name lint-shellcheck -- xargs -a build/lint-shell.txt shellcheck --external-sources
[ $# -gt 0 ] || finish --require lint-
