"""Verbs of the retrieval study that write fixed measurements."""

import json
from pathlib import Path
from types import MappingProxyType

METRICS = {"f1": 0.1, "token_accuracy": 0.05, "bits_per_byte": 2.0, "contains": 0.0}


class WrittenVerbs:
    """Writes a fixed training or evaluation for each command, and records the commands.

    Attributes:
        commands: the commands so far.
        scale: the scale of the study.
        learned: by procedure, the steps to the end of each fine-tuning's first stage; None = never. The
            second stage is never learned.
        exact: the share of exact answers by workdir and task.
        losses: the last validation loss of each arm.
    """

    def __init__(
        self, scale, learned, exact=lambda workdir, task: 0.25, losses=MappingProxyType({"a": 1.0})
    ):
        self.commands, self.scale, self.learned = [], scale, learned
        self.exact, self.losses = exact, losses

    def __call__(self, command, log):
        self.commands.append(command)
        flags = dict(flag.removeprefix("--").split("=", 1) for flag in command.arguments)
        workdir = Path(flags["workdir"])
        if command.verb == "evaluate":
            folder = workdir / "evaluations" / f"{int(flags['step']):08d}"
            folder.mkdir(parents=True)
            for flag in command.arguments:
                if flag.startswith("--task="):
                    name = flag.removeprefix("--task=").partition("=")[0]
                    self._write_answers(folder, name, self.exact(workdir, name))
            return
        workdir.mkdir(parents=True)
        parts = flags["config"].partition(":")[2].split(",")
        probabilities = {f"arm/{arm}/probability": 1 / len(self.losses) for arm in self.losses}
        losses = {f"arm/{arm}/validation_loss": loss for arm, loss in self.losses.items()}
        lines, steps = [{"step": 1, "loss": 2.0, **probabilities, **losses}], 1
        if len(parts) == 8:
            cap = int(flags["config.train.num_steps"])
            learned = self.learned[parts[2]][int(parts[6])] if parts[7] == "0" else None
            steps = learned or cap
            cell = f"entries_{self.scale.phonebook.stages[int(parts[7])].until}"
            every = self.scale.phonebook_tuning.measured_every
            lines = [
                {
                    "step": step,
                    f"task/{cell}/exact_match": 0.9 if step == learned else 0.55 * (step >= steps - 50),
                }
                for step in range(every, steps + 1, every)
            ]
        elif len(parts) == 6:
            lines = [{"step": 600, "task/extraction/f1": 0.2}]
        objectives = {"mixture": "small_models"}
        config = {
            "train": {"num_steps": steps},
            "batching": {"rows": 4, "length": 256},
            "objectives": objectives,
        }
        summary = {"completed": True, "num_steps": steps, "parameters": 9}
        arms = [{"name": arm, "group": arm} for arm in self.losses]
        for name, value in (("config", config), ("summary", summary), ("arms", arms)):
            (workdir / f"{name}.json").write_text(json.dumps(value))
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def _write_answers(self, folder, name, exact):
        record = {"task": "written", "settings": {}, "main_metric": "f1", "refused": []}
        line = {
            "prompt": "p",
            "references": ["r"],
            "weight": 1.0,
            "groups": {},
            "metrics": {**METRICS, "exact_match": exact, "copied_entry": 0.75},
        }
        (folder / f"{name}.json").write_text(json.dumps(record))
        (folder / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
