"""The kinds of sections in the order of the page; a new kind needs a file and a line here."""

from birdie_jax.reporting.section import SectionKind
from birdie_jax.reporting.sections.answers import ANSWERS
from birdie_jax.reporting.sections.arm_table import ARM_TABLE
from birdie_jax.reporting.sections.arms_over_steps import ARMS_OVER_STEPS
from birdie_jax.reporting.sections.bandit_decisions import BANDIT
from birdie_jax.reporting.sections.classes import CLASSES
from birdie_jax.reporting.sections.corpora import CORPORA
from birdie_jax.reporting.sections.scalars import MACHINE, OTHER_SCALARS, TRAINING
from birdie_jax.reporting.sections.shares import SHARES
from birdie_jax.reporting.sections.tasks import TASKS
from birdie_jax.reporting.sections.texts import ARM_EXAMPLES, CONFIGURATION, MASKED_SAMPLES, PREDICTED
from birdie_jax.reporting.sections.time_use import TIME_USE
from birdie_jax.reporting.sections.what_ran import WHAT_RAN

# `OTHER_SCALARS` draws the scalars that no earlier kind draws.
SECTIONS: tuple[SectionKind, ...] = (
    ANSWERS,
    PREDICTED,
    MASKED_SAMPLES,
    BANDIT,
    TRAINING,
    CLASSES,
    TASKS,
    SHARES,
    CORPORA,
    ARMS_OVER_STEPS,
    MACHINE,
    TIME_USE,
    OTHER_SCALARS,
    ARM_TABLE,
    ARM_EXAMPLES,
    WHAT_RAN,
    CONFIGURATION,
)

__all__ = ["SECTIONS"]
