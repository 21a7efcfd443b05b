"""Chat templates: from the messages of a dialogue to the text that a model reads before it answers."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

# A single message of the user is read as it is, so that `generate --prompt` asks in the form that was
# taught. In a longer dialogue each message stands under its role, and the last line says who is to speak.
DEFAULT_TEMPLATE = """\
{%- if messages | length == 1 and messages[0].role == 'user' -%}
{{ messages[0].content }}
{%- else -%}
{%- for message in messages -%}
{{ message.role ~ ':\\n' ~ message.content ~ '\\n\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ 'assistant:\\n' }}
{%- endif -%}
{%- endif -%}
"""


class TemplateFailed(ValueError):  # noqa: N818 - what became of a dialogue, not a fault of the program
    """A template cannot be rendered for a dialogue; the message says why."""


class ChatTemplate:
    """A Jinja template with `messages`, each with `role` and `content`, and `add_generation_prompt`, true.

    It renders everything before the answer, the beginning of the assistant's turn included. Templates that
    tokenizers carry elsewhere are of this kind; they may call `raise_exception`, and their `bos_token` and
    `eos_token` are empty here, where special tokens are never text. It runs in Jinja's sandbox.
    """

    def __init__(self, source: str):
        """Compile a template; an empty one stands for the default.

        Raises:
            ValueError: it is no template; the message names its line.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False
        )
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(source or DEFAULT_TEMPLATE)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text before the answer.

        Raises:
            TemplateFailed: the template refuses the messages, or cannot be rendered for them.
        """
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, bos_token="", eos_token=""
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise TemplateFailed(f"{type(error).__name__}: {error}") from error
        except (OverflowError, RecursionError, MemoryError) as error:
            raise TemplateFailed(type(error).__name__) from error


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
