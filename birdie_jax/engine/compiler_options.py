"""What the train step asks of XLA's compiler, by the kind of device.

An option stands here if the compiled step shows what it gains (docs/launch_presets.md has the figures, and
those that gain nothing). It goes with the program, so that a run, a plan and every launcher have the same.
"""

from birdie_jax.engine.chips import CHIPS, chip_of

# Parameters that `fsdp` divides are gathered while products run, not before them.
_OPTIONS = {CHIPS["v4"]: {"xla_enable_async_all_gather": True}}


def compiler_options(device_kind: str) -> dict[str, bool]:
    """Return the options for a kind of device, `jax.Device.device_kind`."""
    chip = chip_of(device_kind)
    return {} if chip is None else dict(_OPTIONS.get(chip, {}))
