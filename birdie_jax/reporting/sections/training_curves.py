"""Section: loss, accuracy and, for a run with arms, the validation loss of causal language modelling."""

from birdie_jax.reporting.headline import scalar_figure
from birdie_jax.reporting.numbers import fixed, percent
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import LOSS, ScalarPlot, causal_figures, causal_panel, scalar_panels
from birdie_jax.reporting.section import PanelGroup, Section, SectionKind


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section:
    """Return the section of the training curves."""
    # Only a language model is known to measure its loss in nats a token.
    unit = LOSS if run.arms else "as logged"
    panels = scalar_panels(
        run,
        (
            ScalarPlot("loss", "Train loss", unit),
            ScalarPlot("accuracy", "Train accuracy", "share of target tokens, greedy", percent=True),
        ),
    )
    figures = tuple(
        scalar_figure(run, name, title, form)
        for name, title, form in (("loss", "train loss", fixed), ("accuracy", "train accuracy", percent))
        if run.arms or name in scalars
    )
    if run.arms:
        panels += (causal_panel(run),)
        figures += causal_figures(run)
    return Section(
        anchor="training",
        link="Training",
        title="Training",
        introduction="The horizontal axis of every plot on this page is the train step.",
        groups=(PanelGroup(panels),),
        figures=figures,
    )


TRAINING = SectionKind(make_section, scalars=("loss", "accuracy"))
