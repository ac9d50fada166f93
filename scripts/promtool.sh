#!/usr/bin/env bash
# Prints where promtool is: in PATH, or unpacked from Debian's package prometheus into build/promtool. Installing that
# package would start a server. Ends with 69 where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v promtool; then
  exit 0
fi
tool=build/promtool/usr/bin/promtool
if [ ! -x "$tool" ]; then
  mkdir -p build/promtool
  (cd build/promtool && apt-get download -q prometheus >download.log 2>&1 && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb) ||
    { echo "promtool.sh: apt-get could not download the package prometheus" >&2; exit 69; }
fi
echo "$PWD/$tool"
