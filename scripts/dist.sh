#!/usr/bin/env bash
# `make dist`: build/dist/*.whl, a wheel with the daemon and every shared library that is not part of glibc or of GCC's
# runtime, for RHEL 9, Ubuntu 22.04 and what is newer; and build/dist/*.cdx.json, bills of materials. One commit gives
# the same bytes, in any folder.
# GRADSYNCD_FOR_WHEEL=path takes a daemon that is built already.
set -euo pipefail
cd "$(dirname "$0")/.."
python=build/venv/bin/python
. scripts/dist/tools.sh
rm -rf build/dist build/dist-unrepaired
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w build/dist-unrepaired \
  clients/python
PATH=$PWD/$tools/bin:$PATH auditwheel repair --plat "manylinux_2_34_$(uname -m)" --wheel-dir build/dist build/dist-unrepaired/*.whl
built=${GRADSYNCD_FOR_WHEEL:-build/cpu-release/bin/gradsyncd}
"$tools/bin/python" scripts/dist/sbom.py "$(dirname "$(dirname "$built")")" build/dist/*.whl
"$tools/bin/auditwheel" show build/dist/*.whl
ls -l build/dist
