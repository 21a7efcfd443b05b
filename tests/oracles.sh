# Sourced after environment.sh: fetches the implementations that tests compare ours with. They stay outside .venv,
# since recurrentgemma asks for an older NumPy than ours, which it does not need.

make_oracles() {
    fetch_packages oracles "implementations to compare with" recurrentgemma einops typeguard || return 1
    export BIRDIE_ORACLES="$FETCHED"
}
