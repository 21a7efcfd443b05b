"""Generation: prefill prompts once, bidirectionally if the model can, then decode answers."""

from birdie_jax.generation.generator import STOP_TOKENS, Answer, Generator, generate
from birdie_jax.generation.prompt import Prompt
from birdie_jax.generation.prompt_formats import choose_arm, make_context, make_prompt, make_question
from birdie_jax.generation.sampling import GREEDY, Sampling
from birdie_jax.generation.timing import GenerationTimes, cache_bytes, cache_grows
from birdie_jax.models.saved_state import SavedState

__all__ = [
    "GREEDY",
    "STOP_TOKENS",
    "Answer",
    "GenerationTimes",
    "Generator",
    "Prompt",
    "Sampling",
    "SavedState",
    "cache_bytes",
    "cache_grows",
    "choose_arm",
    "generate",
    "make_context",
    "make_prompt",
    "make_question",
]
