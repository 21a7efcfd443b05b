"""Compilation for tests: seconds of optimisation would be spent on programs that run once."""

import os

import jax

# Without the fusion emitters, which build every kernel in MLIR first, a CPU compiles in half the time.
_QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
QUICK_FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in _QUICK.items())


def quick_jit(function, **options):
    """Return `jax.jit(function)` that compiles several times as fast and runs slower."""
    return jax.jit(function, compiler_options=_QUICK, **options)


def start_jax() -> None:
    """Start JAX with two devices, and compile as `quick_jit` in this process, but not in its children."""
    given = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{given or ''} {QUICK_FLAGS}"
    # XLA reads the variable, and JAX the number, with the first device, and never again.
    jax.config.update("jax_num_cpu_devices", 2)
    jax.devices()
    if given is None:
        del os.environ["XLA_FLAGS"]
    else:
        os.environ["XLA_FLAGS"] = given
