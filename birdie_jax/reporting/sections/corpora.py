"""Section: the corpora with their planned and actual shares, epochs and losses."""

import numpy as np

from birdie_jax.metric_names import CORPUS_PREFIX, corpus_metric
from birdie_jax.reporting import curves
from birdie_jax.reporting.page_text import count, fixed, percent
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import Section, SectionKind


def make_corpora(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of the corpora, or None if the run reads one text."""
    names = sorted({name.split("/")[1] for name in scalars})
    if not names:
        return None
    weights = {name: run.find_setting(f"data.corpora.{name}.weight") or 1.0 for name in names}
    positions = {name: float(np.nansum(_values(run, name, "positions"))) for name in names}
    rows = [
        {
            "name": name,
            "share": percent(weights[name] / sum(weights.values())),
            "measured": percent(positions[name] / max(sum(positions.values()), 1.0)),
            "tokens": count(float(np.nansum(_values(run, name, "tokens")))),
            "epochs": fixed(_last(run, name, "epochs")),
            "loss": fixed(_last(run, name, "loss")),
            "validation": fixed(_last(run, name, "validation_loss")),
        }
        for name in names
    ]
    return Section(
        anchor="corpora",
        link="Corpora",
        title="Corpora",
        introduction="Shares of positions: by the weights of config.data.corpora, and over all logged "
        "steps. They differ if arms read only some corpora. Epochs are those of the first row.",
        template="corpora.html",
        values={"rows": rows},
    )


def _values(run: RunRecord, name: str, quantity: str) -> np.ndarray:
    return run.metrics.scalar(corpus_metric(name, quantity))


def _last(run: RunRecord, name: str, quantity: str) -> float:
    return curves.last_finite(_values(run, name, quantity))


CORPORA = SectionKind(make_corpora, scalars=(f"{CORPUS_PREFIX}*",))
