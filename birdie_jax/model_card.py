"""The Markdown card of an exported model: architecture, training and scores."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from birdie_jax.config import Config, ModelConfig, corpora_of
from birdie_jax.evaluation_record import EvaluationRecord
from birdie_jax.metric_names import stage_metric
from birdie_jax.models.registry import architecture_of
from birdie_jax.reporting.json_records import read_arms, read_json_object
from birdie_jax.reporting.metrics_table import MetricsTable, read_metrics
from birdie_jax.reporting.run_record import read_evaluations
from birdie_jax.start_record import Start, read_starts
from birdie_jax.storage import exists
from birdie_jax.storage.workdir import Workdir
from birdie_jax.trained_model import TrainedModel

# The fields of a stage that are not settings of its task, in the configuration of any version.
_OF_STAGE = frozenset({"task", "rows", "length", "epochs", "steps", "skip_long", "pack"})
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
        RecordError: another record of the run is damaged.
        OSError: a file cannot be read.
    """
    files, config = Workdir(workdir), model.config
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    metrics = read_metrics(files, []) if exists(files.metrics) else None
    kind = "fine-tuning run" if config.finetune.stages else "run"
    average = "averaged over training and " if model.average else ""
    parts = [
        # The publisher of a model chooses its license.
        f"---\nlibrary_name: {'transformers' if for_transformers else 'birdie-jax'}\nlicense: unknown\n"
        f"tags: [birdie-jax, state-space-model, {config.model.name}]\n---",
        f"# {name}",
        f"A {config.model.name} of {parameters:,} parameters, {average}saved at step {model.step:,} of the "
        f"{kind} {files.root.name}{_amount(model, metrics)}.",
        _OPENED_BY_TRANSFORMERS.format(name=name, auto=_auto_class(config.model))
        if for_transformers
        else f"```bash\npython -m birdie_jax.generate --model={name} --prompt='...'\n```",
        "## Training",
        _table(("setting", "value"), _settings(files, config)),
        *_tables(files, model, metrics),
        _starts(read_starts(files)),
        "## Losses",
        _losses(metrics, model.step),
        "## Evaluations",
        _evaluations(_evaluations_of(model, files)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _tables(files: Workdir, model: TrainedModel, metrics: MetricsTable | None) -> list[str]:
    """Return the tables of the stages of fine-tuning, or those of the corpora and the arms."""
    if model.config.finetune.stages:
        return [_stages(model, metrics)]
    return [_corpora(files, model.config), _arms(files, model)]


def _amount(model: TrainedModel, metrics: MetricsTable | None) -> str:
    """Return a text about the tokens that the run has read up to the model's step."""
    batching, stages = model.config.batching, model.config.finetune.stages
    if not stages:
        return f", after at most {model.step * batching.rows * batching.length:,} tokens"
    learned = [_target_tokens(metrics, name, model.step) for name in stages]
    counted = sum(one for one in learned if one is not None)
    return f", after {counted:,} target tokens" if counted else ""


def _target_tokens(metrics: MetricsTable | None, stage: str, step: int) -> int | None:
    """Return the target tokens that a stage has logged up to a step; None if there are no logs."""
    if metrics is None:
        return None
    column = metrics.scalar(stage_metric(stage, "tokens"))[metrics.steps <= step]
    return round(float(np.nansum(column)))


def _settings(files: Workdir, config: Config) -> list[tuple[str, str]]:
    finetune, data = config.finetune, config.data
    summary = read_json_object(files.summary) if exists(files.summary) else {}
    steps = config.train.num_steps or summary.get("num_steps")
    rows = {
        "started from": config.init.from_,
        "steps planned": f"{steps:,}" if steps else "all of the stages",
    }
    if finetune.stages:
        rows |= {
            "low-rank adaptation": f"rank {finetune.lora.rank} of {finetune.lora.maps}"
            if finetune.lora.rank
            else "",
            "teacher": finetune.teacher.from_,
            "second loss": f"of a pass that drops up to {finetune.pruning.max_pruned:g} of the tokens"
            if finetune.pruning.max_pruned
            else "",
        }
    else:
        rows |= {
            "text": "" if data.corpora else data.prepared or data.source,
            "mixture": "" if config.objectives.arms else config.objectives.mixture,
            "bandit policy": config.bandit.policy,
            "rows of a batch": f"{config.batching.rows} of {config.batching.length} tokens",
        }
    rows |= {
        "learning rate": f"{config.optimizer.learning_rate:g}",
        "context read in both directions": "yes" if config.model.bidirectional else "no",
        "seed": str(config.seed),
    }
    return [(name, value) for name, value in rows.items() if value]


def _stages(model: TrainedModel, metrics: MetricsTable | None) -> str:
    """Return a table of the stages of fine-tuning, in their order."""
    rows = []
    for name, stage in sorted(model.config.finetune.stages.items()):
        settings = {key: value for key, value in stage.items() if key not in _OF_STAGE}
        learned = _target_tokens(metrics, name, model.step)
        rows.append(
            (
                name,
                str(stage["task"]),
                ", ".join(f"{key}={value}" for key, value in settings.items() if value is not None),
                f"{stage['rows']} of {stage['length']} tokens",
                _duration(stage),
                "not recorded" if learned is None else f"{learned:,}",
            )
        )
    titles = ("stage", "task", "settings of the task", "rows of a batch", "planned", "target tokens")
    return _table(titles, rows)


def _duration(stage: dict[str, Any]) -> str:
    epochs, steps = stage.get("epochs"), stage.get("steps")
    if epochs is None:
        return f"{steps:,} steps"
    return f"{epochs:g} epochs" + (f", at most {steps:,} steps" if steps is not None else "")


def _corpora(files: Workdir, config: Config) -> str:
    """Return a table of the corpora, if there are several; the run records their tokens and epochs."""
    corpora = corpora_of(config.data)
    recorded = read_json_object(files.corpora) if corpora and exists(files.corpora) else {}
    total = sum(one.weight for one in corpora.values())
    rows = []
    for name, corpus in corpora.items():
        figures = recorded.get(name, {})
        rows.append(
            (
                name,
                corpus.source or corpus.prepared,
                f"{corpus.weight / total:.1%}",
                f"{figures['tokens']:,}" if "tokens" in figures else "not recorded",
                f"{figures['expected_epochs']:.2g}" if "expected_epochs" in figures else "not recorded",
            )
        )
    return _table(("corpus", "text", "share", "tokens", "expected epochs"), rows) if rows else ""


def _arms(files: Workdir, model: TrainedModel) -> str:
    """Return a table of the run's own arms, if it has any, as arms.json or the configuration has them."""
    objectives = model.config.objectives
    if not objectives.arms:
        return ""
    recorded = read_arms(files.arms)
    arms = [(one.name, one.objective, one.weight, one.corpora) for one in recorded]
    arms = arms or [(one.name, one.objective.name, one.weight, one.corpora) for one in model.arms]
    total = sum(weight for _, _, weight, _ in arms)
    rows = [
        (name, objective, f"{weight / total:.1%}", ", ".join(corpora) or "all")
        for name, objective, weight, corpora in arms
    ]
    unit = objectives.shares_of.replace("_", " ")
    titles = ("arm", "objective", f"first share of {unit}", "corpora")
    if not model.config.data.corpora:
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return _table(titles, rows)


def _starts(starts: Sequence[Start]) -> str:
    if not starts:
        return "The run did not record its devices."
    # Omit the names of machines: a card is public.
    rows = [
        (
            start.began,
            start.ended or "no end recorded",
            start.outcome or "",
            f"{start.devices} x {start.device}",
            start.program.title,
        )
        for start in starts
    ]
    table = _table(("began", "ended", "outcome", "devices", "program"), rows)
    hours = sum(start.device_hours or 0.0 for start in starts)
    cost = f"{hours:.2f} device hours, over the starts with a recorded end."
    return f"{table}\n\n{cost}\n\n```bash\n{starts[-1].program.command}\n```"


def _auto_class(model: ModelConfig) -> str:
    if not architecture_of(model).encoder:
        return "AutoModelForCausalLM"
    return "AutoModelForSequenceClassification" if model.head else "AutoModelForMaskedLM"


def _losses(metrics: MetricsTable | None, step: int) -> str:
    """Return the last losses up to a step: of training, of each stage, and of each arm's validation."""
    if metrics is None:
        return "The run recorded no losses."
    rows = []
    for name, column in sorted(metrics.scalars.items()):
        known = np.flatnonzero((metrics.steps <= step) & np.isfinite(column))
        of_stage = name.startswith("stage/") and name.endswith("/loss")
        if (name == "loss" or name.endswith("/validation_loss") or of_stage) and known.size:
            rows.append((name, f"{metrics.steps[known[-1]]:,}", f"{column[known[-1]]:.4g}"))
    return _table(("loss", "step", "nats a token"), rows) if rows else "The run recorded no losses."


def _evaluations_of(model: TrainedModel, files: Workdir) -> list[EvaluationRecord]:
    """Return the evaluations of the model's parameters; its step may have others, of an average."""
    of_step = read_evaluations(files, model.step)
    # The hash takes time, because it reads all parameters.
    own = model.identify().parameters_sha256 if of_step else ""
    return [record for record in of_step if record.model.parameters_sha256 == own]


def _evaluations(records: Sequence[EvaluationRecord]) -> str:
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
    if not rows:
        return "No evaluation of this model is recorded; `python -m birdie_jax.evaluate` makes one."
    return _table(("task", "metric", "mean", "95 % interval", "answers"), rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
