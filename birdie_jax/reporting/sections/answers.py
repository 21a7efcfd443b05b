"""Section: the first questions of evaluations of exact answers, with the model's answers."""

from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import Section, SectionKind


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of answers, or None if no evaluation has answers to show."""
    del scalars
    records = [record for record in run.evaluations if record.shown]
    if not records:
        return None
    return Section(
        anchor="answers",
        link="Answers",
        title="Answers",
        introduction="The model's answers to the first questions of each evaluation, right or wrong.",
        template="answers.html",
        values={"records": records},
    )


ANSWERS = SectionKind(make_section)
