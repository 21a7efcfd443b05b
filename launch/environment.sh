# Sourced by the two commands: makes .venv if there is none, and installs this project with the tested versions.
# Arguments: the extras to install, e.g. "test"; empty for none.

make_environment() {
    local extras="${1:-}" python wanted marker
    if [ ! -x .venv/bin/python ]; then
        python=$(command -v python3 || command -v python || true)
        if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "birdie-jax needs Python 3.11 or newer; found: $("$python" --version 2>&1 || echo none)" >&2
            return 1
        fi
        echo "making .venv with $("$python" --version)"
        "$python" -m venv .venv
    fi
    # Installing again is skipped while nothing that it depends on has changed.
    marker=".venv/.installed-${extras:-base}"
    wanted=$(cat setup.cfg pyproject.toml constraints.txt | cksum)
    if [ ! -f "$marker" ] || [ "$(cat "$marker")" != "$wanted" ]; then
        echo "installing birdie-jax${extras:+ with $extras} and what it needs into .venv"
        .venv/bin/python -m pip install -qq --disable-pip-version-check \
            --constraint constraints.txt --editable ".${extras:+[$extras]}"
        echo "$wanted" >"$marker"
    fi
}
