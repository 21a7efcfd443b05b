"""Tables of tasks: the files of GLUE and of sentence pairs."""

import json
import random
from pathlib import Path

from benchmarks.fuzzing.cases import Case
from benchmarks.fuzzing.mutations import HOSTILE_TEXTS, encode_loosely, mutate_bytes
from benchmarks.fuzzing.valid_files import MODEL
from tests.tasks.glue_folders import UNLABELLED_COLUMNS, labels_of, write_glue

_NAME = "mutated"
_BIG_BENCH = {"examples": [{"input": "A dog of ", "target_scores": {"goes": 1, "go": 0}, "comment": "a"}]}
_PAIRS = {
    "choices": json.dumps(_BIG_BENCH),
    "gulordava": (
        "pattern\tform\tclass\tn_attr\tlen_prefix\tsent\n"
        'L__N\tgoes\tcorrect\t2\t2\t"A dog says "" no "" to cats . <eos>"\n'
        'L__N\tgo\twrong\t2\t2\t"A dog says "" no "" to cats . <eos>"\n'
    ),
    "linzen": "3\t7\tthe dogs of a cat ***mask*** , he said .\tgo\tgoes\n",
    "marvin_linzen": "simple\tsing\tthe dog laughs\tthe dog laugh\n",
}


def make_table_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: a table with changed cells, lines or bytes, read as evaluation reads it."""
    if draws.random() < 0.6:
        dataset = draws.choice(tuple(UNLABELLED_COLUMNS))
        rows = [("abc", "def ghi", draws.choice(labels_of(dataset))) for _ in range(3)]
        splits = ("train", "dev_matched" if dataset == "mnli" else "dev")
        path = draws.choice([write_glue(folder / _NAME, dataset, split, rows) for split in splits])
        flag = f"glue:path={folder / _NAME},dataset={dataset}"
    else:
        form = draws.choice(tuple(_PAIRS))
        path = folder / _NAME
        path.write_text(_PAIRS[form])
        flag = f"agreement:path={path},format={draws.choice((form, form, *_PAIRS))}"
    done = _change(draws, path)

    def run() -> str:
        from birdie_jax.tasks.evaluation import tasks_of_flags
        from birdie_jax.text import Tokenizer

        (named,) = tasks_of_flags([flag])
        tokenizer = Tokenizer(valid / MODEL)
        named.task.check_data(tokenizer)
        if named.task.name != "agreement":
            named.task.training_examples(tokenizer)
        return "read"

    return Case(f"{flag}: {done}", (_NAME, "--task"), run)


def _change(draws: random.Random, path: Path) -> str:
    lines = [line.split("\t") for line in path.read_text().split("\n")]
    line = draws.choice(lines)
    match draws.randrange(6):
        case 0 | 1:
            line[draws.randrange(len(line))] = draws.choice((*HOSTILE_TEXTS, '"', '""', "\t", "\r"))
            done = "another cell"
        case 2:
            del line[draws.randrange(len(line))]
            done = "a cell less"
        case 3:
            lines.insert(draws.randint(0, len(lines)), draws.choice((line, [""], ["\ufeff"], ["\x85"])))
            done = "a line more"
        case 4:
            path.write_bytes(mutate_bytes(draws, path.read_bytes()))
            return "bytes changed"
        case _:
            done = "valid"
    path.write_bytes(encode_loosely("\n".join("\t".join(line) for line in lines)))
    return done
