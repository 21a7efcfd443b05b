"""Quick compilation for tests, because their programs run once."""

import os

import jax

from birdie_jax.cpu_threads import start_enough_threads

# Without the fusion emitters, which build every kernel in MLIR, compilation for CPUs takes half the time.
_QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
QUICK_FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in _QUICK.items())


def quick_jit(function, **options):
    """Return `jax.jit(function)` with several times faster compilation and slower execution."""
    return jax.jit(function, compiler_options=_QUICK, **options)


def start_jax() -> None:
    """Start JAX with two devices, and compile like `quick_jit` in this process, but not in its children."""
    given = dict(os.environ)
    os.environ["XLA_FLAGS"] = (
        f"{given.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2 {QUICK_FLAGS}"
    )
    start_enough_threads()
    # XLA reads the variables at the first use of a device.
    jax.devices()
    os.environ.clear()
    os.environ.update(given)
