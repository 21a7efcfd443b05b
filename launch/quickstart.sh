#!/usr/bin/env bash
# From a fresh clone to a trained model and its report: makes .venv, trains configs/tiny.py, names the report.
# Stopped and started again, it goes on from the newest checkpoint.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/environment.sh
make_environment ""
.venv/bin/python -m birdie_jax.train --config=configs/tiny.py --workdir="${WORKDIR:-runs/tiny}" "$@"
