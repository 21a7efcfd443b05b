#!/usr/bin/env bash
# Makes .venv with the test extra, checks the code's form, and runs the fast tests, or with --all every test; other
# arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/environment.sh
. launch/compilers.sh
. tests/oracles.sh
. tests/servers.sh

# Compilers, servers and the harness are for slow tests alone.
fetch_all() {
    make_oracles || return 1
    case " $* " in *" --all "*) make_compilers && make_lm_eval && make_servers && make_torch && make_trackers && make_beam && make_docs ;; esac
}

make_environment test
# Fetching waits for the network, the checks for the processor.
fetch_all "$@" &
fetching=$!
trap wait EXIT
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/lint-imports --no-cache
.venv/bin/basedpyright
.venv/bin/python -m tests.english
wait "$fetching"
# What is there already is found, and the variables that name it are set.
fetch_all "$@"
export JAX_PLATFORMS=cpu
.venv/bin/python -m pytest -n "${TEST_PROCESSES:-2}" --dist loadfile "$@"
