"""The options of the train step for XLA's compiler, by the kind of device.

An option is here if the compiled step shows a gain (docs/launch_presets.md has the figures, also of options
without a gain). The program sets it, so a run, a plan and every launcher use the same.
"""

from birdie_jax.engine.chips import CHIPS, chip_of

# Parameters that `fsdp` divides are gathered while products run, not before them.
_OPTIONS = {CHIPS["v4"]: {"xla_enable_async_all_gather": True}}


def compiler_options(device_kind: str) -> dict[str, bool]:
    """Return the options for a kind of device, `jax.Device.device_kind`."""
    chip = chip_of(device_kind)
    return {} if chip is None else dict(_OPTIONS.get(chip, {}))
