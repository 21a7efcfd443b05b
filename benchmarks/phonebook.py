"""Measure the speed of making phone books, and the empty share of packed rows, on one core.

python -m benchmarks.phonebook --tokenizer=runs/tiny/tokenizer.model
"""

import argparse
import json
import time

import numpy as np

from birdie_jax.tasks.phonebook import Phonebook
from birdie_jax.text import Tokenizer

_SPACING = 3
_PROMPTS = 1000
_ROW_POSITIONS = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True, help="a SentencePiece model")
    tokenizer = Tokenizer(parser.parse_args().tokenizer)
    task = Phonebook(min_entries=64, max_numbers=4, max_positions=2048, num_questions=_PROMPTS)
    begin = time.monotonic()
    questions, _ = task.questions(tokenizer)
    figures: dict[str, float] = {"seconds_for_1000_questions_of_up_to_2048": time.monotonic() - begin}
    tokens = sum(len(tokenizer.encode(question.prompt)) for question in questions)
    figures["mean_tokens_of_their_prompts"] = tokens / len(questions)
    examples = Phonebook().training_examples(tokenizer)
    for length in (1024, 16_384):
        rng = np.random.default_rng(0)
        used = drawn = 0
        begin = time.monotonic()
        for _ in range(_ROW_POSITIONS // length):
            room = length
            while room > 0 and (example := examples.draw(rng, room)) is not None:
                covered = len(example.context) + len(example.target)
                used += covered
                drawn += 1
                room -= covered + _SPACING
        seconds = time.monotonic() - begin
        figures[f"rows_of_{length}_empty_share"] = 1 - used / _ROW_POSITIONS
        figures[f"rows_of_{length}_books_a_row"] = drawn * length / _ROW_POSITIONS
        figures[f"rows_of_{length}_positions_per_second"] = _ROW_POSITIONS / seconds
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
