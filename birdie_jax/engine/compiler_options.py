"""What the train step asks of XLA's compiler, by the kind of device.

An option stands here if the compiled step shows what it gains (docs/launch_presets.md has the figures, and
those that gain nothing). It goes with the program, so that a run, a plan and every launcher have the same.
"""

from collections.abc import Mapping
from types import MappingProxyType

# Parameters that `fsdp` divides are gathered while products run: by default a v4 and a v5p wait for them.
_GATHERS_BEHIND_PRODUCTS = MappingProxyType({"xla_enable_async_all_gather": True})

_OPTIONS: Mapping[str, Mapping[str, bool]] = MappingProxyType(
    dict.fromkeys(("TPU v4", "TPU v5", "TPU v5p"), _GATHERS_BEHIND_PRODUCTS)
)


def compiler_options(device_kind: str) -> dict[str, bool]:
    """Return the options for a kind of device, `jax.Device.device_kind`."""
    return dict(_OPTIONS.get(device_kind, {}))
