"""The names of an objective arm's, corpus's or stage's scalars in `metrics.jsonl` and TensorBoard.

arm/<name>/examples, positions, tokens, loss, accuracy               of the training steps logged
arm/<name>/validation_loss, validation_accuracy, probability, reward of a decision
corpus/<name>/examples, positions, tokens, loss, accuracy            of the training steps logged
corpus/<name>/validation_loss, validation_accuracy, epochs           of a decision
bandit/predicted_reward, earned_reward                               of a decision, summed over arms
stage/<name>/tokens, loss, accuracy                                  of fine-tuning's steps logged
stage/<name>/pruned_loss, surviving_share                            of these, if a pass drops tokens
stage/<name>/teacher_loss, teacher_divergence, teacher_relations     of these, if there is a teacher
"""

ARM_PREFIX = "arm/"
CORPUS_PREFIX = "corpus/"
# Quantities of the train steps since the last line.
TRAINING_QUANTITIES = ("examples", "positions", "tokens", "loss", "accuracy")
# Quantities of fine-tuning's pass that drops tokens, in all stages and in each one: its loss, and the share
# of target tokens after the last layer.
PRUNED_LOSS, SURVIVING_SHARE = "pruned_loss", "surviving_share"
# Quantities of distillation, in all stages and in each one: the teacher's own loss, the divergence from its
# distribution, and the difference between the cosines of hidden states.
TEACHER_QUANTITIES = ("teacher_loss", "teacher_divergence", "teacher_relations")
# Quantities of a decision of the bandit.
DECISION_QUANTITIES = ("validation_loss", "validation_accuracy", "probability", "reward")
# The reward that a policy predicts for the new mixture, if any, and the earned reward of the previous
# mixture: class-scaled rewards, summed over arms.
PREDICTED_REWARD, EARNED_REWARD = "bandit/predicted_reward", "bandit/earned_reward"


def arm_metric(arm: str, quantity: str) -> str:
    """Return the name of the scalar `quantity` of the arm named `arm`."""
    return f"{ARM_PREFIX}{arm}/{quantity}"


def corpus_metric(corpus: str, quantity: str) -> str:
    """Return the name of the scalar `quantity` of the corpus named `corpus`."""
    return f"{CORPUS_PREFIX}{corpus}/{quantity}"


def stage_metric(stage: str, quantity: str) -> str:
    """Return the name of the scalar `quantity` of the stage of fine-tuning named `stage`."""
    return f"stage/{stage}/{quantity}"
