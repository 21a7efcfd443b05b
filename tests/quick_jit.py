"""Compilation for tests: seconds of optimisation would be spent on programs that run once."""

import os

import jax

QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def quick_jit(function, **options):
    """Return `jax.jit(function)` that compiles about twice as fast and runs slower."""
    return jax.jit(function, compiler_options=_QUICK, **options)


def compile_quickly() -> None:
    """Have every program of this process, but none of its children, compiled as by `quick_jit`."""
    given = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{given or ''} {QUICK_FLAGS}"
    # XLA reads the variable with the first device, and never again.
    jax.devices()
    if given is None:
        del os.environ["XLA_FLAGS"]
    else:
        os.environ["XLA_FLAGS"] = given
