# Sourced by other scripts: creates .venv if there is none that works, and installs this project with the tested
# versions. A terminal may also source it, so nothing here relies on `set -e` or ends the shell.

# Arguments: the extras to install, e.g. "test"; empty for none.
make_environment() {
    # The lock ends with this subshell. .venv may be a link to an environment that other clones also lock.
    local lock=.venv.lock
    if [ -L .venv ] && [ -d .venv ]; then lock=.venv/.lock; fi
    (
        take_lock "$lock" "another command is making .venv"
        check_environment || exit 1
        if [ ! -e .venv/pyvenv.cfg ]; then create_environment || exit 1; fi
        install_project "${1:-}"
    )
}

# Removes a .venv that this file has created and that does not work; fails with an error for other broken ones.
check_environment() {
    local fault
    if [ ! -e .venv ] && [ ! -L .venv ]; then return 0; fi
    if [ -L .venv ] && [ ! -d .venv ]; then
        refuse ".venv: found a link to $(readlink .venv), which is no folder; remove the link (rm .venv)"
        return 1
    fi
    if [ ! -d .venv ]; then
        refuse ".venv: found a file; allowed: nothing, or an environment; move it away"
        return 1
    fi
    if [ ! -e .venv/pyvenv.cfg ] && [ ! -e .venv/.making ]; then
        # An empty folder is safe to remove.
        if [ ! -L .venv ] && rmdir .venv 2>/dev/null; then return 0; fi
        refuse ".venv: found a folder that is no Python environment (it has no pyvenv.cfg); move it away"
        return 1
    fi
    fault=$(environment_fault)
    if [ -z "$fault" ]; then return 0; fi
    if [ -L .venv ]; then
        refuse ".venv: found a link to $(readlink .venv), which $fault; remove the link (rm .venv)"
        return 1
    fi
    if grep -q '^uv *=' .venv/pyvenv.cfg 2>/dev/null; then
        refuse ".venv: was made by uv, and $fault; remove it, or install pip into it (uv pip install pip)"
        return 1
    fi
    echo "making .venv anew: it $fault"
    rm -rf .venv
}

# Prints the fault of .venv as the end of a sentence; nothing if it works.
environment_fault() {
    local made found
    if [ -e .venv/.making ]; then
        echo "was left half made"
    elif [ -e .venv/.installing ]; then
        # pip counts a package with missing files as installed.
        echo "was left while packages were installed into it"
    elif ! found=$(.venv/bin/python -c "$_VERSION" 2>/dev/null) || [ -z "$found" ]; then
        echo "has no Python that runs"
    else
        made=$(sed -n 's/^version\(_info\)\{0,1\} *= *\([0-9]*\.[0-9]*\).*/\2/p' .venv/pyvenv.cfg | head -n 1)
        if [ -n "$made" ] && [ "$made" != "$found" ]; then
            echo "was made by Python $made, and its Python is $found now"
        elif [ -e .venv/.made-for ] && [ "$(cat .venv/.made-for)" != "$(environment_identity)" ]; then
            echo "was made for $(cat .venv/.made-for), and is used as $(environment_identity)"
        elif [ ! -e .venv/bin/activate ] || ! .venv/bin/python -c 'import pip' 2>/dev/null; then
            # Python writes the activation script last.
            echo "has no pip, or was left half made"
        fi
    fi
}

_VERSION='import sys; print("%d.%d" % sys.version_info[:2])'

# Prints the processor and the path of the environment, because packages and their programs depend on them.
environment_identity() {
    echo "$(uname -sm) in $(cd ./.venv && pwd -P)"
}

create_environment() {
    local python said
    python=$(find_python) || return 1
    echo "making .venv with $("$python" --version 2>&1)"
    # This mark allows the next command to remove the folder.
    mkdir .venv && : >.venv/.making || return 1
    trap 'if [ -e .venv/.making ]; then rm -rf .venv; fi' EXIT
    if ! said=$("$python" -m venv .venv 2>&1) || [ ! -e .venv/bin/activate ]; then
        rm -rf .venv
        said=$(printf '%s\n' "$said" | grep -v '^ *$' | tail -n 1 | cut -c 1-200)
        refuse "$python cannot make .venv${said:+ ($said)}; install its venv module (on Debian and Ubuntu:" \
            "apt install python3-venv), or put another Python 3.11 or newer on PATH"
        return 1
    fi
    rm .venv/.making
}

# Prints the first Python on PATH that is new enough.
find_python() {
    local name found versions=""
    for name in python3 python python3.14 python3.13 python3.12 python3.11; do
        found=$(command -v "$name") || continue
        if "$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$found"
            return 0
        fi
        versions="${versions:+$versions, }$found ($("$found" --version 2>&1 | head -n 1 | cut -c 1-80))"
    done
    refuse "needs Python 3.11 or newer on PATH; found: ${versions:-none}"
    return 1
}

install_project() {
    local extras="$1" marker wanted other status=0
    # Skip the installation if nothing that it depends on has changed.
    marker=".venv/.installed-${extras:-base}"
    wanted=$(cat setup.py setup.cfg pyproject.toml constraints.txt hashes.txt | cksum)
    if [ -f "$marker" ] && [ "$(cat "$marker")" = "$wanted" ]; then return 0; fi
    echo "installing birdie-jax${extras:+ with $extras} and what it needs into .venv"
    : >.venv/.installing || return 1
    # Sets of extras share packages, so this installation may replace those of other pins.
    for other in .venv/.installed-*; do
        if [ -f "$other" ] && [ "$(cat "$other")" != "$wanted" ]; then rm -f "$other"; fi
    done
    # pip ends with 1 both when it is interrupted and when it fails by itself.
    trap 'exit 130' INT
    install_packages "$extras" pip_install || status=$?
    # After an error that pip reports, packages are complete; after a signal, they may not be.
    if [ "$status" -lt 128 ]; then rm -f .venv/.installing; fi
    if [ "$status" -ne 0 ]; then
        refuse "installing into .venv failed (pip ended with $status); the same command tries again"
        return 1
    fi
    environment_identity >.venv/.made-for
    echo "$wanted" >"$marker"
}

pip_install() {
    .venv/bin/python -m pip install -qq --disable-pip-version-check "$@"
}

# Installs this project and its dependencies. The installer compares each file with hashes.txt before it runs any code
# from it. Arguments: the extras, separated by commas, and the install command, e.g. python -m pip install.
install_packages() {
    local extras="$1" extra sets="[base]" unknown=""
    shift
    for extra in $(echo "$extras" | tr ',' ' '); do
        if grep -q "^# .*\[$extra\]" hashes.txt; then
            sets="$sets [$extra]"
        else
            unknown="${unknown:+$unknown,}$extra"
        fi
    done
    # An isolated build would fetch its own setuptools without hashes, so builds use this one.
    install_by_hash setuptools "$@" || return
    install_by_hash "$sets" "$@" --no-build-isolation || return
    if [ -z "$unknown" ]; then
        "$@" --no-deps --no-build-isolation --editable . || return
    else
        echo "hashes.txt has none for $unknown: what it adds is installed by version alone"
        "$@" --no-build-isolation --constraint constraints.txt --editable ".[$unknown]" || return
    fi
}

# Arguments: packages and sets of hashes.txt, as one word, and the install command.
install_by_hash() {
    local requirements
    requirements=$(find_hashes "$1") || return
    shift
    "$@" --require-hashes --requirement /dev/stdin <<<"$requirements"
}

# Prints the blocks of hashes.txt for packages and sets, e.g. "setuptools [gcs]"; fails if one has no block.
find_hashes() {
    awk -v wanted="$1" '
        BEGIN { RS = ""; FS = "\n"; split(wanted, words, " "); for (i in words) missing[words[i]] }
        {
            chosen = 0
            split($1, names, " ")
            for (i in names) for (j in words) if (names[i] == words[j]) { chosen = 1; delete missing[words[j]] }
            if (chosen) print
        }
        END { for (word in missing) exit 1 }' hashes.txt
}

# Prints the extra for the NVIDIA driver of this machine; nothing if there is no driver, or it is too old. For the
# driver that each CUDA requires, see https://docs.jax.dev/en/latest/installation.html.
gpu_extra() {
    local driver
    command -v nvidia-smi >/dev/null || return 0
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || return 0
    case "${driver%%.*}" in
    "" | *[!0-9]*) return 0 ;;
    esac
    if [ "${driver%%.*}" -ge 580 ]; then
        echo cuda13
    elif [ "${driver%%.*}" -ge 525 ]; then
        echo cuda12
    else
        echo "NVIDIA driver $driver: JAX needs 525 or newer; the CPU is used" >&2
    fi
}

# Installs packages atomically, with the versions of constraints.txt, into a folder of the cache, and sets FETCHED to
# the folder. Arguments: the name of the folder, a description of the packages, and the packages.
fetch_packages() {
    local name="$1" what="$2" cache wanted
    shift 2
    cache=$(cache_folder) || return 1
    wanted=$(grep -E "^($(echo "$*" | tr ' ' '|'))==" constraints.txt | cksum | cut -d' ' -f1)
    FETCHED="$cache/$name-$wanted"
    if [ -d "$FETCHED" ]; then return 0; fi
    mkdir -p "$cache" || return 1
    (
        take_lock "$FETCHED.lock" "another command is fetching $what"
        if [ -d "$FETCHED" ]; then exit 0; fi
        echo "fetching $what into $FETCHED"
        # Remove the parts of commands that were stopped.
        rm -rf "$FETCHED".part*
        trap 'rm -rf "$FETCHED.part"' EXIT
        if ! install_apart "$@"; then
            refuse "fetching $what failed; the same command tries again"
            exit 1
        fi
        mv "$FETCHED.part" "$FETCHED"
    )
}

# Installs packages without their dependencies into $FETCHED.part.
install_apart() {
    if find_hashes "$*" >/dev/null; then
        install_by_hash "$*" pip_install --no-deps --target "$FETCHED.part"
    else
        # PyTorch's build for CPUs is on another index than PyPI.
        pip_install --no-deps --target "$FETCHED.part" --constraint constraints.txt "$@"
    fi
}

# Prints the folder for files that can be recreated, by the same rules as birdie_jax/storage/cache_folder.py.
cache_folder() {
    # https://specifications.freedesktop.org/basedir: a path that is not absolute counts as unset.
    case "${XDG_CACHE_HOME:-}" in
    /*) echo "$XDG_CACHE_HOME/birdie_jax" ;;
    *)
        case "${HOME:-}" in
        /*) echo "$HOME/.cache/birdie_jax" ;;
        *)
            refuse "no folder for caches: neither XDG_CACHE_HOME nor HOME is an absolute path; set one of them"
            return 1
            ;;
        esac
        ;;
    esac
}

# Waits until no other shell holds the lock. The lock lasts as long as this shell and its child processes. Without
# flock, or if nothing can be written, continues without a lock. Arguments: the lock's file, and a message for waiting.
take_lock() {
    command -v flock >/dev/null || return 0
    { exec 9>"$1"; } 2>/dev/null || return 0
    if ! flock -n 9; then
        echo "waiting: $2"
        flock 9
    fi
}

refuse() {
    echo "birdie-jax: $*" >&2
}
