"""The fields of `config.bandit`: meanings, types and defaults."""

from dataclasses import dataclass, field

from birdie_jax.config_types import (
    Candidates,
    ClipNorm,
    CriticUpdates,
    Decisions,
    Depth,
    Deviation,
    Divergence,
    LearningRate,
    Name,
    PositiveShare,
    PosteriorSamples,
    SelectedCandidates,
    Share,
    Steps,
    Text,
    WeightDecay,
    Width,
)


@dataclass(frozen=True)
class Exp3SConfig:
    """The settings of policy exp3s (`bandit/policies/exp3s.py`).

    Attributes:
        learning_rate: eta; how much a reward moves the logarithm of a weight.
        exploration: gamma; the share of the mixture that the mixture's own weights always keep.
        sharing: alpha; the share of all weight that returns to the mixture's own weights at a decision.
    """

    learning_rate: LearningRate = 0.5
    exploration: PositiveShare = 0.2
    sharing: Share = 0.02


@dataclass(frozen=True)
class ThompsonConfig:
    """The settings of policy thompson (`bandit/policies/thompson.py`).

    Attributes:
        samples: the number of draws of the model at a decision; each draw votes for an arm.
        exploration: the share of the mixture that the mixture's own weights always keep.
        memory: the number of decisions after which a reward counts for about a third.
        prior_deviation: the standard deviation of the rewards between arms, before any observation.
        noise_deviation: the standard deviation of the rewards under one mixture.
    """

    samples: PosteriorSamples = 16
    exploration: Share = 0.2
    memory: Decisions = 16
    prior_deviation: Deviation = 1.0
    noise_deviation: Deviation = 0.1


@dataclass(frozen=True)
class TrustRegionConfig:
    """The settings of the policies that follow estimated gains (`bandit/trust_region.py`).

    They are attribution, cross_effects, gradients and pairs.

    Attributes:
        step: how much a gain of unit size moves the logarithm of a class's share at a decision.
        kl_limit: the maximum Kullback-Leibler divergence of a decision's shares from the previous shares,
            in nats.
        floor: the share of the mixture that the mixture's own weights always keep.
        perturbation: how much pairs and attribution change each share to learn about it: up by this part of
            the share, and equally far down on a logarithmic scale.
        memory: the number of decisions after which a third remains of the observations of pairs and
            attribution, and of the distance of the shares from the mixture's own.
    """

    step: LearningRate = 0.2
    kl_limit: Divergence = 0.05
    floor: Share = 0.05
    perturbation: PositiveShare = 0.25
    memory: Decisions = 32


@dataclass(frozen=True)
class BanditConfig:
    """The choice of the mixture during training.

    Attributes:
        policy: how to choose the mixture; fixed: the mixture's own weights. docs/steer_the_mixture.md lists
            all policies.
        reward: how to score an action; the same page lists all rewards.
        reward_memory: the number of observations that set the scale of a reward; the published reward has
            no scale.
        every_steps: the number of train steps between two decisions; each decision measures every arm's
            validation loss.
        critic: gated_ssm (Birdie) or transformer (the early draft's RL-MoD).
        critic_layers: depth of the critic.
        critic_features: width of the critic.
        critic_state: recurrent channels of a Gated SSM critic.
        critic_updates: the number of optimizer steps per decision, each on the whole history.
        critic_learning_rate: the learning rate of AdamW.
        critic_weight_decay: the weight decay of AdamW.
        critic_clip: the maximum global gradient norm.
        critic_error: scaled (of class-scaled rewards, as published) or classes (classes weigh the same).
        critic_noise: relative uniform noise on the critic's inputs during its updates.
        selection: candidates (mean of the best random mixtures) or top_arms (RL-MoD: the M best arms).
        candidates: the number of uniform random mixtures; the same number again is sharpened with the
            fourth power.
        candidate_prior: classes (random masses of classes, each split at random within its class) or arms
            (random over all arms, as published: the mass of a class stays near its share of the arms).
        average_best: the number of best candidates to average for the proposal; 1 = the best one.
        top_arms: M of `selection` top_arms.
        explore_first: the share of all decisions, from the first, that always explore.
        explore_decay: the share of all decisions, after these, in which the probability of exploring falls
            along a cosine.
        explore_from: the probability of exploring at the start of the fall.
        explore_to: the probability of exploring at the end of the fall and later.
        stages: the schedule of policy staged, by shares of the run, with weights of classes:
            "0: causal_lm=1; 0.5: causal_lm=1, copying=2".
        exp3s: the settings of policy exp3s.
        thompson: the settings of policy thompson.
        trust_region: the settings of policies attribution, cross_effects, gradients and pairs.
    """

    policy: Name = "fixed"
    reward: Name = "published"
    reward_memory: Decisions = 8
    every_steps: Steps = 512
    critic: Name = "gated_ssm"
    critic_layers: Depth = 4
    critic_features: Width = 256
    critic_state: Width = 512
    critic_updates: CriticUpdates = 200
    critic_learning_rate: LearningRate = 5e-4
    critic_weight_decay: WeightDecay = 0.1
    critic_clip: ClipNorm = 1.0
    critic_error: Name = "scaled"
    critic_noise: Share = 0.02
    selection: Name = "candidates"
    candidates: Candidates = 4096
    candidate_prior: Name = "classes"
    average_best: SelectedCandidates = 8
    top_arms: SelectedCandidates = 4
    explore_first: Share = 0.05
    explore_decay: Share = 0.45
    explore_from: Share = 0.5
    explore_to: Share = 0.25
    stages: Text = ""
    exp3s: Exp3SConfig = field(default_factory=Exp3SConfig)
    thompson: ThompsonConfig = field(default_factory=ThompsonConfig)
    trust_region: TrustRegionConfig = field(default_factory=TrustRegionConfig)
