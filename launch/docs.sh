#!/usr/bin/env bash
# Creates .venv with the extra `docs`, and serves the documentation at http://localhost:8000. Arguments are passed to
# `mkdocs serve`. `.venv/bin/python -m mkdocs build --strict` writes the site to .site/ instead.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/environment.sh
make_environment docs
export NO_MKDOCS_2_WARNING=1 JAX_PLATFORMS=cpu
exec .venv/bin/python -m mkdocs serve "$@"
