#!/usr/bin/env bash
# Writes what the Debian package has besides the sources: files.sh DAEMON VERSION FOLDER. The same daemon, sources and
# SOURCE_DATE_EPOCH give the same bytes.
set -euo pipefail
daemon=$1 version=$2 folder=$3
sources=$(realpath "$(dirname "$0")/../..")
rm -rf "$folder"
mkdir -p "$folder/licences"
cd "$folder"

"$daemon" man gradsyncd | gzip -9n >gradsyncd.1.gz
"$daemon" man gradsyncd.toml | gzip -9n >gradsyncd.toml.5.gz
"$daemon" completion bash >gradsyncd
"$daemon" completion zsh >_gradsyncd

# Every key is a comment: a default that changes in a later version takes effect without an edit, and what is written
# for the daemon of the machine does not bind those that users start for themselves.
sed -e '1i # Every line of settings is a comment that shows the default; remove its # to change it.\n' \
  -e 's/^[a-z_]* = /#&/' "$sources/deploy/config/gradsyncd.toml" >gradsyncd.toml

gzip -9nc "$sources/CHANGELOG.md" >CHANGELOG.md.gz
gzip -9n >changelog.gz <<END
gradsync ($version) unstable; urgency=medium

  * Version $version. CHANGELOG.md.gz says what is new.

 -- gradsync maintainers <maintainers@gradsync.invalid>  $(LC_ALL=C date -u -R -d "@${SOURCE_DATE_EPOCH:-0}")
END

# Libraries of which the daemon holds compiled code; the shared ones are packages of their own.
for package in libboost1.81-dev libcli11-dev libspdlog-dev nlohmann-json3-dev; do
  gzip -9nc "/usr/share/doc/$package/copyright" >"licences/$package.gz"
done
