# shellcheck shell=bash
# Sourced by the scripts that pack: the tools that they need, as `tools`, and the date of what they write.
tools=build/dist-tools  # not build/venv: auditwheel is no part of the development environment
stamp=$tools/.requirements
if ! cmp -s scripts/requirements/dist.txt "$stamp"; then
  build/venv/bin/python -m venv --clear "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/requirements/dist.txt
  cp scripts/requirements/dist.txt "$stamp"
fi
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
