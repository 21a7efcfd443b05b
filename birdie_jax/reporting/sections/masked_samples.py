"""Section: held-out texts with what the model put in the places of hidden tokens at the end of the run."""

from birdie_jax.reporting.run_record import MaskedSample, RunRecord
from birdie_jax.reporting.section import Section, SectionKind

# More would make a page of hundreds of arms as long as a book.
_MAX_SAMPLES = 24


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of hidden tokens; None where the run has filled in none."""
    del scalars
    record = run.masked
    if record is None or not record.samples:
        return None
    samples = record.samples[:_MAX_SAMPLES]
    hidden = [token for sample in samples for token in sample.hidden]
    right = sum(token.is_right for token in hidden)
    return Section(
        anchor="masked",
        link="Masked tokens",
        title="Masked tokens",
        template="masked_samples.html",
        values={
            "step": record.step,
            "samples": [(sample.arm, _parts(sample)) for sample in samples],
            "right": right,
            "hidden": len(hidden),
        },
    )


def _parts(sample: MaskedSample) -> list[tuple[str, object]]:
    """Return each text with the hidden token after it, None behind the last."""
    return list(zip(sample.texts, [*sample.hidden, None], strict=True))


MASKED_SAMPLES = SectionKind(make_section)
