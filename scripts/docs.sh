#!/usr/bin/env bash
# `make docs`: the documentation as a site, in build/docs. A link or an anchor that leads nowhere fails.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/docs-tools # not build/venv: these are no part of the development environment
stamp=$tools/.requirements
if ! cmp -s scripts/requirements/docs.txt "$stamp"; then
  build/venv/bin/python -m venv --clear "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/requirements/docs.txt
  cp scripts/requirements/docs.txt "$stamp"
fi
NO_MKDOCS_2_WARNING=true exec "$tools/bin/mkdocs" build --quiet --clean "$@"
