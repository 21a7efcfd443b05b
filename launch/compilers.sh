# Sourced after environment.sh: fetches the compilers for TPUs and NVIDIA GPUs, with which programs are compiled
# for machines that are not there. They stay outside .venv, where JAX would look for those machines.

make_compilers() {
    fetch_packages compilers "compilers for TPUs and GPUs" \
        libtpu jax-cuda13-pjrt jax-cuda13-plugin nvidia-cuda-nvcc nvidia-nvvm || return 1
    export BIRDIE_COMPILERS="$FETCHED"
}
