# Sourced after environment.sh: fetches the compilers for TPUs and NVIDIA GPUs, with which programs are compiled
# for machines that are not there. They stay outside .venv, where JAX would look for those machines.

make_compilers() {
    local wanted packages
    packages="libtpu jax-cuda13-pjrt jax-cuda13-plugin nvidia-cuda-nvcc nvidia-nvvm"
    wanted=$(grep -E "^($(echo $packages | tr ' ' '|'))==" constraints.txt | cksum | cut -d' ' -f1)
    BIRDIE_COMPILERS="${XDG_CACHE_HOME:-$HOME/.cache}/birdie_jax/compilers-$wanted"
    if [ ! -d "$BIRDIE_COMPILERS" ]; then
        echo "fetching compilers for TPUs and GPUs into $BIRDIE_COMPILERS"
        rm -rf "$BIRDIE_COMPILERS.part"
        .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
            --constraint constraints.txt --target "$BIRDIE_COMPILERS.part" $packages
        mv "$BIRDIE_COMPILERS.part" "$BIRDIE_COMPILERS"
    fi
    export BIRDIE_COMPILERS
}
