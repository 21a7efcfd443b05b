# Sourced after environment.sh: fetches the compilers for TPUs and NVIDIA GPUs, which compile programs for machines
# that are not attached. They stay outside .venv, because JAX would look for these machines if they were in it.

make_compilers() {
    fetch_packages compilers "compilers for TPUs and GPUs" \
        libtpu jax-cuda13-pjrt jax-cuda13-plugin nvidia-cuda-nvcc nvidia-nvvm || return 1
    export BIRDIE_COMPILERS="$FETCHED"
}
