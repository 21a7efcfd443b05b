"""The XLA compiler options of the train step, by kind of device.

An option is listed if the compiled step shows a gain. docs/launch_presets.md has the figures, also of
options without a gain. The program sets the options, so a run, a plan and every launcher use the same ones.
"""

from birdie_jax.engine.chips import CHIPS, chip_of

# Gather the parameters that `fsdp` divides during matrix products, not before them.
_OPTIONS = {CHIPS["v4"]: {"xla_enable_async_all_gather": True}}


def compiler_options(device_kind: str) -> dict[str, bool]:
    """Return the options for a kind of device, `jax.Device.device_kind`."""
    chip = chip_of(device_kind)
    return {} if chip is None else dict(_OPTIONS.get(chip, {}))
