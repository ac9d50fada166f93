#!/usr/bin/env bash
# unpacked.sh promtool|nginx: prints where that program is: in PATH, or unpacked from its package of Debian into build/.
# Installing the package would start a server. Ends with 69 where the program cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-}
case $name in
  promtool) package=prometheus place=usr/bin ;;
  nginx) package=nginx place=usr/sbin ;;
  *)
    echo "unpacked.sh: '$name' is neither promtool nor nginx" >&2
    exit 64
    ;;
esac
if PATH=$PATH:/usr/sbin:/usr/local/sbin command -v "$name"; then
  exit 0
fi
program=build/$name/$place/$name
if [ ! -x "$program" ]; then
  mkdir -p "build/$name"
  (cd "build/$name" && apt-get -o Acquire::Retries=0 -o Acquire::http::Timeout=20 download -q "$package" >download.log 2>&1 && dpkg-deb -x "$package"_*.deb . && rm "$package"_*.deb) ||
    { echo "unpacked.sh: apt-get could not download the package $package" >&2; exit 69; }
fi
[ -x "$program" ] || { echo "unpacked.sh: the package $package has no $place/$name" >&2; exit 69; }
echo "$PWD/$program"
