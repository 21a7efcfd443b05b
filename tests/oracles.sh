# Sourced after environment.sh: fetches the implementations that tests compare ours with. They stay outside .venv,
# since recurrentgemma asks for an older NumPy than ours, which it does not need.

make_oracles() {
    local wanted packages
    packages="recurrentgemma einops typeguard"
    wanted=$(grep -E "^($(echo $packages | tr ' ' '|'))==" constraints.txt | cksum | cut -d' ' -f1)
    BIRDIE_ORACLES="${XDG_CACHE_HOME:-$HOME/.cache}/birdie_jax/oracles-$wanted"
    if [ ! -d "$BIRDIE_ORACLES" ]; then
        echo "fetching implementations to compare with into $BIRDIE_ORACLES"
        rm -rf "$BIRDIE_ORACLES.part"
        .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
            --constraint constraints.txt --target "$BIRDIE_ORACLES.part" $packages
        mv "$BIRDIE_ORACLES.part" "$BIRDIE_ORACLES"
    fi
    export BIRDIE_ORACLES
}
