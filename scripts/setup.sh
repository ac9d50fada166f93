#!/usr/bin/env bash
# Installs what building, testing and the demo need on Debian 12: packages by name, and a Python environment in
# build/venv. Works as root, or as a user with sudo; does nothing when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  ca-certificates ccache clang-format-16 cmake g++ git make ninja-build pkg-config python3-dev python3-venv shellcheck
  libbenchmark-dev libboost1.81-dev libboost-system1.81-dev libcli11-dev libgmock-dev libgtest-dev libhwy-dev
  libspdlog-dev libtomlplusplus-dev libxxhash-dev nlohmann-json3-dev prometheus-cpp-dev
)
# Only the fuzzers need these: where they cannot be had, the fuzzers are skipped.
optional=(clang-16 libclang-rt-16-dev)

refuse() {
  echo "setup: $*" >&2
  exit 69
}

# Prints those of its arguments that are not installed.
not_installed() {
  local installed
  installed=$(dpkg-query -W -f='${Package} ${Status}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    [[ $'\n'$installed$'\n' == *$'\n'"$package install ok installed"$'\n'* ]] || echo "$package"
  done
}

mapfile -t missing < <(not_installed "${packages[@]}")
mapfile -t wanted_too < <(not_installed "${optional[@]}")
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || refuse "this is not Debian 12; install yourself what these packages hold: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || refuse "packages are missing; run as root, or install sudo: ${missing[*]}"
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -q || echo "setup: apt-get update failed; trying with the lists that are there" >&2
  install "${missing[@]}" ||
    refuse "apt-get could not install: ${missing[*]} (they are those of Debian 12, bookworm)"
fi
if [ ${#wanted_too[@]} -gt 0 ]; then
  echo "setup: installing ${wanted_too[*]}, for the fuzzers"
  [ ${#missing[@]} -gt 0 ] || "${as_root[@]}" apt-get update -q || true
  install "${wanted_too[@]}" || echo "setup: could not install ${wanted_too[*]}; the fuzzers will be skipped" >&2
fi

# The environment is complete when it was made from these very files, in this place.
venv=build/venv
stamp=$venv/.requirements
wanted=$(echo "$PWD" && cat scripts/requirements.txt clients/python/pyproject.toml)
if [ ! -x "$venv/bin/python" ] || [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  echo "setup: Python environment in $venv (a few minutes the first time)"
  mkdir -p build
  "$venv/bin/python" -c '' 2>/dev/null || "${PYTHON:-python3}" -m venv --clear "$venv"
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input)
  "${pip[@]}" -r scripts/requirements.txt || refuse "pip could not install scripts/requirements.txt into $venv"
  "${pip[@]}" --no-build-isolation --no-deps --editable clients/python ||
    refuse "pip could not install clients/python into $venv"
  echo "$wanted" >"$stamp"
fi
