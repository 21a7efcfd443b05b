"""Section: the configuration of the run."""

import json
from typing import Any

from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import Section, SectionKind


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of config.json; None where the run has no configuration."""
    if not run.config:
        return None
    return Section(
        anchor="configuration",
        link="Configuration",
        title="Configuration",
        template="configuration.html",
        values={"tables": config_tables(run.config)},
    )


def config_tables(config: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the sections of the configuration, each with its rows of field and value."""
    top = [(name, json.dumps(value)) for name, value in config.items() if not isinstance(value, dict)]
    tables = [("run", top)] if top else []
    for name, section in config.items():
        if isinstance(section, dict):
            fields = [
                (key, json.dumps(value, indent=1, ensure_ascii=False)) for key, value in section.items()
            ]
            tables.append((name, fields))
    return tables


CONFIGURATION = SectionKind(make_section)
