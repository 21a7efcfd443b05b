"""The Markdown card of an exported model: architecture, training and scores."""

from collections.abc import Sequence

import jax
import numpy as np
from etils import epath

from birdie_jax.config import Config, ModelConfig, corpora_of
from birdie_jax.evaluation_record import EvaluationRecord
from birdie_jax.models.registry import architecture_of
from birdie_jax.reporting.metrics_table import read_metrics
from birdie_jax.reporting.run_record import read_evaluations
from birdie_jax.start_record import Start, read_starts
from birdie_jax.storage import exists
from birdie_jax.storage.workdir import Workdir
from birdie_jax.trained_model import TrainedModel

_OPENED_BY_TRANSFORMERS = """```python
from transformers import AutoTokenizer, {auto}

tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)
model = {auto}.from_pretrained("{name}", trust_remote_code=True)
```"""


def model_card(
    workdir: epath.PathLike, model: TrainedModel, name: str, *, for_transformers: bool = False
) -> str:
    """Return the card of a run's model.

    Args:
        workdir: the folder of the run.
        model: the model of one of its checkpoints.
        name: the name of the exported folder.
        for_transformers: whether the folder is for `transformers`.

    Raises:
        DataError: the record of the starts is damaged.
        RecordError: an evaluation or a line of the metrics is damaged.
        OSError: a file cannot be read.
    """
    files, config = Workdir(workdir), model.config
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    tokens = model.step * config.batching.rows * config.batching.length
    parts = [
        # The publisher of a model chooses its license.
        f"---\nlibrary_name: {'transformers' if for_transformers else 'birdie-jax'}\nlicense: unknown\n"
        f"tags: [birdie-jax, state-space-model, {config.model.name}]\n---",
        f"# {name}",
        f"A {config.model.name} of {parameters:,} parameters, saved at step {model.step:,} of the run "
        f"{files.root.name}, after at most {tokens:,} tokens.",
        _OPENED_BY_TRANSFORMERS.format(name=name, auto=_auto_class(config.model))
        if for_transformers
        else f"```bash\npython -m birdie_jax.generate --model={name} --prompt='...'\n```",
        "## Training",
        _table(("setting", "value"), _settings(config)),
        _starts(read_starts(files)),
        "## Losses",
        _losses(files, model.step),
        "## Evaluations",
        _evaluations([one for one in read_evaluations(files) if one.model.step == model.step]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(config: Config) -> str:
    corpora = corpora_of(config.data)
    if not corpora:
        return config.data.prepared or config.data.source
    return "; ".join(
        f"{name} (weight {each.weight:g}): {each.source or each.prepared}" for name, each in corpora.items()
    )


def _settings(config: Config) -> list[tuple[str, str]]:
    taught = ", ".join(sorted(config.finetune.stages))
    rows = {
        "text": _text(config),
        "started from": config.init.from_,
        "stages of fine-tuning": taught,
        "mixture": "" if taught else config.objectives.mixture,
        "bandit policy": "" if taught else config.bandit.policy,
        "rows of a batch": f"{config.batching.rows} of {config.batching.length} tokens",
        "steps planned": f"{config.train.num_steps:,}",
        "learning rate": f"{config.optimizer.learning_rate:g}",
        "context read in both directions": "yes" if config.model.bidirectional else "no",
        "seed": str(config.seed),
    }
    return [(name, value) for name, value in rows.items() if value]


def _starts(starts: Sequence[Start]) -> str:
    if not starts:
        return "The run did not record its devices."
    # Omit the names of machines: a card is public.
    rows = [
        (
            start.began,
            start.ended or "not known",
            start.outcome or "",
            f"{start.devices} x {start.device}",
            start.program.title,
        )
        for start in starts
    ]
    table = _table(("began", "ended", "outcome", "devices", "program"), rows)
    hours = sum(start.device_hours or 0.0 for start in starts)
    cost = f"{hours:.2f} device hours, over the starts with a known end."
    return f"{table}\n\n{cost}\n\n```bash\n{starts[-1].program.command}\n```"


def _auto_class(model: ModelConfig) -> str:
    if not architecture_of(model).encoder:
        return "AutoModelForCausalLM"
    return "AutoModelForSequenceClassification" if model.head else "AutoModelForMaskedLM"


def _losses(files: Workdir, step: int) -> str:
    """Return the last losses up to a step: the train loss, and the validation loss of each arm."""
    if not exists(files.metrics):
        return "None was recorded."
    metrics = read_metrics(files, [])
    rows = []
    for name, column in sorted(metrics.scalars.items()):
        known = np.flatnonzero((metrics.steps <= step) & np.isfinite(column))
        if (name == "loss" or name.endswith("/validation_loss")) and known.size:
            rows.append((name, f"{metrics.steps[known[-1]]:,}", f"{column[known[-1]]:.4g}"))
    return _table(("loss", "step", "nats a token"), rows) if rows else "None was recorded."


def _evaluations(records: Sequence[EvaluationRecord]) -> str:
    if not records:
        return "None at this step: `python -m birdie_jax.evaluate` makes some."
    rows = [
        (
            record.name,
            metric,
            f"{interval.mean:.4g}",
            f"{interval.low:.4g} .. {interval.high:.4g}",
            f"{record.answers:,}",
        )
        for record in records
        for metric, interval in record.metrics.items()
    ]
    return _table(("task", "metric", "mean", "95 % interval", "answers"), rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
