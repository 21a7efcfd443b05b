"""The prompt of a question: its text in the format of an objective, or its own tokens."""

import numpy as np

from birdie_jax.generation import Prompt, make_prompt
from birdie_jax.objectives import Objective
from birdie_jax.tasks.question import Question
from birdie_jax.text import Tokenizer


def prompt_of(question: Question, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    """Return the prompt that a model is asked by.

    Args:
        question: the question.
        objective: the objective in whose format a text is asked; prompt tokens have their own.
        tokenizer: the model's tokenizer.

    Raises:
        PromptError: the text is empty, or does not have the format of `objective`.
    """
    if not question.prompt_tokens:
        return make_prompt(question.prompt, objective, tokenizer)
    context, target_prefix = question.prompt_tokens, question.target_prefix
    return Prompt(np.array(context, np.int32), np.array(target_prefix, np.int32))
