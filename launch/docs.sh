#!/usr/bin/env bash
# Serves the documentation as a site, at http://localhost:8000; arguments go to `mkdocs serve`. It makes .venv with the
# extra `docs`. `.venv/bin/python -m mkdocs build --strict` writes the site to .site/ instead.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/environment.sh
make_environment docs
export NO_MKDOCS_2_WARNING=1 JAX_PLATFORMS=cpu
exec .venv/bin/python -m mkdocs serve "$@"
