"""Generation: prompts are read in both directions once, then answers are written token by token."""

from birdie_jax.generation.generator import (
    STOP_TOKENS,
    Answer,
    Generator,
    PromptTooLong,
    Times,
    answer_of,
    generate,
)
from birdie_jax.generation.prompt import Prompt
from birdie_jax.generation.sampling import GREEDY, Sampling
from birdie_jax.generation.state_size import state_bytes, state_grows

__all__ = [
    "GREEDY",
    "STOP_TOKENS",
    "Answer",
    "Generator",
    "Prompt",
    "PromptTooLong",
    "Sampling",
    "Times",
    "answer_of",
    "generate",
    "state_bytes",
    "state_grows",
]
