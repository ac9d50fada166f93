#!/usr/bin/env bash
# `make deb`: build/deb/gradsync_VERSION_ARCHITECTURE.deb, for the distribution that it is built on. One commit gives the
# same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
umask 022
scripts/build.sh cpu-release gradsyncd system_files
rm -rf build/deb
log=build/deb.log
(cd build/cpu-release && cpack -G DEB -B ../deb) >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
rm -rf build/deb/_CPack_Packages
ls -l build/deb
