"""The type of a bandit policy, and the registry of policies."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import PyTree

from birdie_jax.array_types import ArmVector, KeyData, Scalar
from birdie_jax.bandit.state import BanditState
from birdie_jax.bandit_config import BanditConfig
from birdie_jax.registry import Registry


def _accept_settings(config: BanditConfig, num_arms: int) -> None:
    del config, num_arms


def _accept_classes(config: BanditConfig, class_names: tuple[str, ...], num_decisions: int) -> None:
    del config, class_names, num_decisions


def _keep_weights(weights: ArmVector) -> ArmVector:
    return weights


def _no_arrays(config: BanditConfig, num_arms: int, key: KeyData) -> PyTree:
    del config, num_arms, key
    return ()


def _keep_policy_state(state: BanditState) -> PyTree:
    return state.policy_state


def _keep_mixture(state: BanditState) -> ArmVector:
    return state.mixture


@dataclass(frozen=True)
class Policy:
    """A policy: pure functions that choose mixtures. The bandit's jitted functions trace them.

    The defaults change nothing: `Policy()` is the policy `fixed`.

    Attributes:
        check: (config, number of arms) -> None. Raises ValueError for settings that the policy does not
            support.
        check_classes: (config, names of the classes, number of decisions) -> None. Raises ValueError for
            settings that name an unknown class, or that do not fit the number of decisions.
        initial_mixture: the mixture's own normalised weights -> the mixture before the first decision.
        init_state: (config, number of arms, key data) -> the policy's own arrays, any pytree.
        update: the state with a new row in its history -> the policy's own arrays after that row.
        propose: the state after `update` -> the next mixture. Random numbers must come from
            `decision_key(state, PROPOSING)`, which makes a decision repeatable.
        predict: the state after `propose` -> the sum over arms of the class-scaled rewards that the policy
            predicts for the mixture. None for a policy without predictions.
        reads_losses: whether `propose` reads the observations. If not, its first mixture is known before
            the run.
        reads_accuracies: whether the policy reads `BanditState.accuracies`.
        reads_gains: whether the policy reads `BanditState.gains`, which require a gradient of the
            validation rows.
    """

    check: Callable[[BanditConfig, int], None] = _accept_settings
    check_classes: Callable[[BanditConfig, tuple[str, ...], int], None] = _accept_classes
    initial_mixture: Callable[[ArmVector], ArmVector] = _keep_weights
    init_state: Callable[[BanditConfig, int, KeyData], PyTree] = _no_arrays
    update: Callable[[BanditState], PyTree] = _keep_policy_state
    propose: Callable[[BanditState], ArmVector] = _keep_mixture
    predict: Callable[[BanditState], Scalar] | None = None

    reads_losses: bool = True
    reads_accuracies: bool = False
    reads_gains: bool = False

    @property
    def changes_mixture(self) -> bool:
        """Whether a decision can change the mixture. If not, the mixture is known before the first step."""
        return self.propose is not _keep_mixture


POLICIES: Registry[Policy] = Registry("bandit.policy")
"""The policies, by the names that `config.bandit.policy` accepts."""

register_policy = POLICIES.register
find_policy = POLICIES.find
