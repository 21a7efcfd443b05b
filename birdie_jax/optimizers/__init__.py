"""The optimizers. To add an optimizer, add a file and import it here."""

# Importing an optimizer registers it.
from birdie_jax.optimizers import adafactor, adamw, muon
from birdie_jax.optimizers.lora import optimizer_of_run
from birdie_jax.optimizers.registry import OPTIMIZERS, make_optimizer, register_optimizer
from birdie_jax.optimizers.schedule import DECAY_SHAPES, learning_rate_schedule, warn_of_a_cut_warmup

__all__ = [
    "DECAY_SHAPES",
    "OPTIMIZERS",
    "adafactor",
    "adamw",
    "learning_rate_schedule",
    "make_optimizer",
    "muon",
    "optimizer_of_run",
    "register_optimizer",
    "warn_of_a_cut_warmup",
]
