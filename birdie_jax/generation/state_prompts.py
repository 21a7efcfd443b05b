"""A long text and questions about it as the two parts of one prompt, in the format of an objective.

What follows the text in training follows it here: where the format has a context, marker and text are its
beginning, the question is its end, and then comes the start token; where it has none (causal_lm), the text
follows the start token, and the question follows the text. The two parts are tokenized apart.
"""

from dataclasses import replace

from birdie_jax.generation.prompt import Prompt
from birdie_jax.generation.prompt_formats import PromptError, make_prompt
from birdie_jax.objectives import Objective
from birdie_jax.text import Tokenizer

# The objectives whose prompts are text without places of their own, so that text may follow text.
CONTINUED = ("prefix_lm", "copying", "deshuffling", "causal_lm")


def make_context(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    """Return the part of a prompt that a state has read: what `make_prompt` makes of the text.

    Raises:
        PromptError: the text is empty or no Unicode text, or nothing can follow a text in this format.
    """
    if objective.name not in CONTINUED:
        raise PromptError(
            f"objective {objective.name}: a question cannot follow a text that was read in its form; "
            f"allowed: {', '.join(CONTINUED)}"
        )
    return make_prompt(text, objective, tokenizer)


def make_question(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    """Return the part of a prompt that follows what `make_context` has made: the text without a marker.

    Raises:
        PromptError: the text is empty or no Unicode text, or nothing can follow a text in this format.
    """
    return make_context(text, replace(objective, marker=None), tokenizer)
