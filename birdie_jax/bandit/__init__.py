"""The bandit that chooses the mixture (Birdie, section 3.3): pure functions on one pytree of arrays.

    state = init_bandit(config, weights, groups, num_decisions, key)
    state = propose(observe(state, validation_losses))      # at every decision; state.mixture is in force

`rewards.py` says what an action earned (`reward.py` is the published formula), and `policies/` has one
file for each way to choose. `state.py` holds what is saved in a checkpoint, and `decisions.py` the three
functions above. Policy birdie has `critic.py` and `transformer_critic.py`, which predict rewards, and
`proposals.py`, which finds the action that they predict most of. `classes.py` has what policies need that
work on classes, `trust_region.py` the step of those that follow estimated gains.
"""

from birdie_jax.bandit.critic import CRITICS
from birdie_jax.bandit.decisions import init_bandit, observe, propose
from birdie_jax.bandit.policies import POLICIES, Policy, find_policy, register_policy
from birdie_jax.bandit.proposals import CANDIDATE_PRIORS, CRITIC_ERRORS, SELECTIONS, candidate_scores
from birdie_jax.bandit.reward import reward
from birdie_jax.bandit.rewards import REWARDS, Reward, find_reward, register_reward
from birdie_jax.bandit.state import BanditState

__all__ = [
    "CANDIDATE_PRIORS",
    "CRITICS",
    "CRITIC_ERRORS",
    "POLICIES",
    "REWARDS",
    "SELECTIONS",
    "BanditState",
    "Policy",
    "Reward",
    "candidate_scores",
    "find_policy",
    "find_reward",
    "init_bandit",
    "observe",
    "propose",
    "register_policy",
    "register_reward",
    "reward",
]
