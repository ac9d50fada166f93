#!/usr/bin/env bash
# Installs what building, testing and the demo need on Debian 12: packages by name, and a Python environment in
# build/venv. Runs as root or with sudo; does nothing when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  ccache clang-format-16 cmake g++ git ninja-build pkg-config python3-dev python3-venv
  libbenchmark-dev libboost1.81-dev libboost-system1.81-dev libcli11-dev libgmock-dev libgtest-dev libhwy-dev
  libspdlog-dev libtomlplusplus-dev libxxhash-dev nlohmann-json3-dev prometheus prometheus-cpp-dev
)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: run as root, or install sudo: packages are missing: ${missing[*]}" >&2; exit 69; }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -q
  # The prometheus package is here for promtool alone; its service must not start.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

python=${PYTHON:-python3}
venv=build/venv
stamp=$venv/.requirements
if ! cmp -s scripts/requirements.txt "$stamp"; then
  echo "setup: Python environment in $venv (this takes a few minutes once)"
  mkdir -p build
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/requirements.txt
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable clients/python
  cp scripts/requirements.txt "$stamp"
fi
