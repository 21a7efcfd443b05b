"""Run the harness's own `transformers` model on exported folders.

Arguments: TASKS, then FOLDER OPTIONS TASK for each run. TASKS is a folder of tasks. FOLDER is an exported
model, OPTIONS are the harness's model options, and TASK is the name of a task. Prints as JSON the filtered
responses of the documents of each run.
"""

import json
import sys

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager


def main(tasks: str, *arguments: str) -> None:
    manager = TaskManager(include_path=tasks, include_defaults=False)
    found = []
    for folder, options, task in zip(*[iter(arguments)] * 3, strict=True):
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
