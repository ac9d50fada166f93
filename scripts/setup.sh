#!/usr/bin/env bash
# Installs what the demo, or the demo and everything else, needs on Debian 12: packages by name, and a Python environment
# in build/venv: setup.sh [demo|all], by default all. Works as root, or as a user with sudo; does nothing when everything
# is there.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-all}
packages=(
  ca-certificates ccache cmake g++ git make ninja-build pkg-config python3-venv
  libboost1.81-dev libboost-system1.81-dev libcli11-dev libhwy-dev libspdlog-dev libtomlplusplus-dev libxxhash-dev
  nlohmann-json3-dev prometheus-cpp-dev
)
optional=()
frameworks=()
deploy=()
trackers=()
page=()
case $what in
  demo) requirements=(scripts/requirements/demo.txt) ;;
  all)
    packages+=(clang-format-16 dpkg-dev libbenchmark-dev libgmock-dev libgtest-dev python3-dev shellcheck)
    # Only the fuzzers and tests of packages, the page in a browser, the manual, mpirun, a clock that jumps, links that
    # lose packets and two benchmarks need these: where they cannot be had, those are skipped.
    optional+=(
      chromium clang-16 libclang-rt-16-dev debootstrap faketime groff-base iproute2 libgloo-dev nftables openmpi-bin systemd
      valgrind zsh
    )
    requirements=(scripts/requirements/demo.txt scripts/requirements/tests.txt)
    frameworks=(scripts/requirements/frameworks.txt scripts/requirements/frameworks-alone.txt) # as optional
    deploy=(scripts/requirements/deploy.txt scripts/requirements/deploy-alone.txt) # likewise
    trackers=(scripts/requirements/trackers.txt) # likewise
    page=(scripts/requirements/page.txt) # likewise
    ;;
  *)
    echo "setup: '$what' is neither demo nor all" >&2
    exit 64
    ;;
esac

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

system() {
  (. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-an unknown system}") || echo "an unknown system"
}

mapfile -t missing < <(not_installed "${packages[@]}")
mapfile -t wanted_too < <([ ${#optional[@]} -eq 0 ] || not_installed "${optional[@]}")
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

if [ ${#missing[@]} -gt 0 ]; then
  grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release || refuse "this is $(system), and the packages are named as in
Debian 12 (bookworm). To use gradsync here, no build is needed: 'make dist' on Debian 12, also in a container, writes a
wheel for every Linux with a glibc that is not older, and 'pip install' of it brings the daemon. To build here, install
yourself what these packages hold: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || refuse "packages are missing; run as root, or install sudo: ${missing[*]}"
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -q || echo "setup: apt-get update failed; trying with the lists that are there" >&2
  install "${missing[@]}" ||
    refuse "apt-get could not install: ${missing[*]} (they are those of Debian 12, bookworm)"
fi
if [ ${#wanted_too[@]} -gt 0 ]; then
  echo "setup: installing ${wanted_too[*]}, for the fuzzers and tests of the packages, the page, the manual, mpirun and two benchmarks"
  [ ${#missing[@]} -gt 0 ] || "${as_root[@]}" apt-get update -q || true
  install "${wanted_too[@]}" || echo "setup: could not install ${wanted_too[*]}; what needs them will be skipped" >&2
fi

# NCCL itself, for the tests that compare with its header and call its library; without it they are skipped. Nothing else
# uses it here: a worker on GPUs gets it from [nccl] library.
install_nccl() {
  local folder=build/nccl
  local wanted=scripts/requirements/nccl.txt
  cmp -s "$wanted" "$folder/requirements.txt" && return
  echo "setup: NCCL in $folder"
  rm -rf "$folder"
  if "${pip[@]}" --no-deps --target "$folder" --requirement="$wanted"; then
    cp "$wanted" "$folder/requirements.txt"
  else
    echo "setup: pip could not install $wanted; tests of NCCL's own library are skipped" >&2
  fi
}

# The environment is complete when it was made from these very files, in this place.
venv=build/venv
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input)
stamp=$venv/.requirements-$what
wanted=$(echo "$PWD" && cat "${requirements[@]}" "${frameworks[@]}" "${deploy[@]}" "${trackers[@]}" "${page[@]}" clients/python/pyproject.toml)
if [ ! -x "$venv/bin/python" ] || [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  echo "setup: Python environment in $venv (a few minutes the first time)"
  mkdir -p build
  "$venv/bin/python" -c '' 2>/dev/null || "${PYTHON:-python3}" -m venv --clear "$venv"
  "${pip[@]}" "${requirements[@]/#/--requirement=}" || refuse "pip could not install ${requirements[*]} into $venv"
  "${pip[@]}" --no-build-isolation --no-deps --editable clients/python ||
    refuse "pip could not install clients/python into $venv"
  if [ ${#frameworks[@]} -gt 0 ]; then
    "${pip[@]}" --no-build-isolation --requirement="${frameworks[0]}" &&
      "${pip[@]}" --no-deps --requirement="${frameworks[1]}" ||
      echo "setup: pip could not install ${frameworks[*]}; tests and benchmarks do without them" >&2
  fi
  if [ ${#deploy[@]} -gt 0 ]; then
    "${pip[@]}" --requirement="${deploy[0]}" && "${pip[@]}" --no-deps --requirement="${deploy[1]}" ||
      echo "setup: pip could not install ${deploy[*]}; tests of deploy/ do without them" >&2
  fi
  if [ ${#trackers[@]} -gt 0 ]; then
    "${pip[@]}" --no-deps --requirement="${trackers[0]}" ||
      echo "setup: pip could not install ${trackers[*]}; tests of trackers do without them" >&2
  fi
  if [ ${#page[@]} -gt 0 ]; then
    "${pip[@]}" --requirement="${page[0]}" ||
      echo "setup: pip could not install ${page[*]}; tests of the page do without them" >&2
  fi
  echo "$wanted" >"$stamp"
fi
[ "$what" != all ] || install_nccl
