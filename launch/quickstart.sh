#!/usr/bin/env bash
# Creates .venv, trains configs/tiny.py, evaluates the model on copying lines of Python that it has never seen, and
# prints the path of the report. If you stop and restart it, it resumes from the newest checkpoint. Arguments are passed
# to the training. WORKDIR is the folder of the run; the default is runs/tiny.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/environment.sh
for argument in "$@"; do
    case "$argument" in
    --workdir | --workdir=* | -workdir | -workdir=*)
        # The evaluation and the report would be those of another run.
        refuse "found $argument; allowed: the environment variable, WORKDIR=FOLDER bash launch/quickstart.sh"
        exit 2
        ;;
    esac
done
extra=$(gpu_extra)
if [ -n "$extra" ]; then echo "found an NVIDIA driver: JAX is installed for $extra"; fi
make_environment "$extra"
.venv/bin/python -m birdie_jax.train --config=configs/tiny.py --workdir="${WORKDIR:-runs/tiny}" "$@"
# 64 questions each, drawn by a seed: lines as long as the longest of either arm of copying, and parts of lines, given
# the text before and after them.
.venv/bin/python -m birdie_jax.evaluate --workdir="${WORKDIR:-runs/tiny}" --shown=1 \
    --task='copy=copying_by_length:lengths=[8],source=stdlib,validation_fraction=0.03,whole_lines=true' \
    --task='pick_out=selective_copying_by_length:lengths=[12],span_length=[3,3],start_delimiter_length=[1,2],end_delimiter_length=[1,2],source=stdlib,validation_fraction=0.03,whole_lines=true' \
    --task='copy_longer=copying_by_length:lengths=[16],source=stdlib,validation_fraction=0.03,whole_lines=true'
.venv/bin/python -m birdie_jax.report --workdir="${WORKDIR:-runs/tiny}"
