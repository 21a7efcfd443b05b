"""The bandit that chooses the mixture (Birdie, section 3.3): pure functions on one pytree of arrays.

    state = init_bandit(config, weights, groups, num_decisions, key)
    state = propose(observe(state, validation_losses))      # at every decision; state.mixture is in force

`reward.py` says what an action earned, `critic.py` and `transformer_critic.py` predict it, `learning.py`
trains them, `proposals.py` chooses, and `state.py` holds what is saved in a checkpoint.
"""

from birdie_jax.bandit.proposals import candidate_scores, propose
from birdie_jax.bandit.reward import reward
from birdie_jax.bandit.state import BanditState, init_bandit, observe

__all__ = ["BanditState", "candidate_scores", "init_bandit", "observe", "propose", "reward"]
