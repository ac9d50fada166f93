#!/usr/bin/env bash
# `make deb`: build/deb/gradsync_VERSION_ARCHITECTURE.deb, for the distribution that it is built on. One commit gives the
# same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/dist/tools.sh
umask 022
scripts/build.sh cpu-release gradsyncd system_files
"$tools/bin/python" scripts/dist/sbom.py build/cpu-release >build/cpu-release/deploy/files/gradsyncd.cdx.json
rm -rf build/deb
log=build/deb.log
(cd build/cpu-release && cpack -G DEB -B ../deb) >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
rm -rf build/deb/_CPack_Packages
ls -l build/deb
