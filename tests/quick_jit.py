"""Compilation for tests: seconds of optimisation would be spent on programs that run once."""

import jax

_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def quick_jit(function, **options):
    """Return `jax.jit(function)` that compiles about twice as fast and runs slower."""
    return jax.jit(function, compiler_options=_QUICK, **options)
