"""Runs the harness's own model of `transformers` on exported folders: TASKS, then FOLDER OPTIONS TASK each.

OPTIONS are those of the model, TASK is the name of a task of the folder TASKS. Prints, as JSON, of each the
filtered responses of its documents.
"""

import json
import sys

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager


def main(tasks: str, *asked: str) -> None:
    manager = TaskManager(include_path=tasks, include_defaults=False)
    found = []
    for folder, options, task in zip(*[iter(asked)] * 3, strict=True):
        results = simple_evaluate(
            model="hf",
            model_args=f"pretrained={folder},trust_remote_code=True,dtype=float32,{options}",
            tasks=[task],
            task_manager=manager,
            bootstrap_iters=0,
            batch_size=4,
            device="cpu",
        )
        found.append([sample["filtered_resps"] for sample in results["samples"][task]])
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
