"""Section: examples of every arm as text."""

from birdie_jax.reporting.example_text import KEPT, VISIBLE
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import Section, SectionKind
from birdie_jax.reporting.theme import class_colour, css_colour

EXAMPLES_OF_ARM = 2  # 104 arms show about as much as a page can carry


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of the arms' examples; None where the run has no arms."""
    if not run.arms:
        return None
    classes = [
        (group, css_colour(class_colour(index)), [run.arms[arm] for arm in arms])
        for index, (group, arms) in enumerate(run.groups.items())
    ]
    return Section(
        anchor="examples",
        link="Examples",
        title="Examples",
        template="arm_examples.html",
        values={"classes": classes, "examples_of_arm": EXAMPLES_OF_ARM, "visible": VISIBLE, "kept": KEPT},
    )


ARM_EXAMPLES = SectionKind(make_section)
