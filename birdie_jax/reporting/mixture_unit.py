"""What the probabilities of a run's mixtures are shares of, in words."""

from birdie_jax.objectives.shares import TARGET_TOKENS
from birdie_jax.reporting.run_record import RunRecord


def has_token_shares(run: RunRecord) -> bool:
    """Tell whether mixtures have shares of target tokens; older runs have shares of examples."""
    return run.find_setting("objectives.shares_of") == TARGET_TOKENS


def probability_title(run: RunRecord) -> str:
    """Return the name of a mixture's probabilities."""
    return "Share of target tokens asked for" if has_token_shares(run) else "Sampling probability"
