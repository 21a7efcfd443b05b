"""Quick compilation for tests, because their programs run once."""

import os

import jax

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
    given = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{given or ''} {QUICK_FLAGS}"
    # XLA reads the variable, and JAX the number, only at the first use of a device.
    jax.config.update("jax_num_cpu_devices", 2)
    jax.devices()
    if given is None:
        del os.environ["XLA_FLAGS"]
    else:
        os.environ["XLA_FLAGS"] = given
