"""The bandit that chooses the mixture (Birdie, section 3.3): pure functions on one pytree of arrays.

    state = init_bandit(config, weights, groups, num_decisions, key)
    state = propose(observe(state, validation_losses))      # at every decision; state.mixture is in force

Modules:

- `decisions.py`: the three functions above.
- `state.py`: the bandit's state, which is part of a checkpoint.
- `rewards.py`: the rewards of an action. `reward.py` has the published formula.
- `policies/`: the policies, one file each.
- `critic.py`, `transformer_critic.py`: the critics of policy birdie, which predict rewards.
- `proposals.py`: the search for the action with the highest predicted reward.
- `classes.py`: functions for policies that work on classes of arms.
- `trust_region.py`: the step of policies that follow estimated gains.
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
