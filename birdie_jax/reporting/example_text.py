"""Text of examples for the page: special tokens made visible, long passages folded or cut."""

import re

from markupsafe import Markup, escape

from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_name

VISIBLE = 420  # characters that are shown before a passage is unfolded
KEPT = 1600  # characters of a passage that the page contains

_SPECIAL = re.compile("|".join(re.escape(special_token_name(token)) for token in range(NUM_SPECIAL_TOKENS)))


def render_text(text: str) -> Markup:
    """Return `text` for the page: escaped, special tokens in boxes, all but its beginning folded.

    Of a very long text the beginning is kept, and how much was cut is said. A special token is never cut
    in two.
    """
    if not text:
        return Markup('<span class="empty">empty</span>')
    head, rest = _split(text, VISIBLE)
    if not rest:
        return mark_special_tokens(head)
    kept, cut = _split(rest, KEPT - len(head))
    tail = mark_special_tokens(kept)
    if cut:
        tail += Markup('<span class="cut"> … {:,} more characters are not on this page</span>').format(
            len(cut)
        )
    return Markup("{}<details><summary>{:,} more characters</summary>{}</details>").format(
        mark_special_tokens(head), len(kept), tail
    )


def _split(text: str, length: int) -> tuple[str, str]:
    """Cut `text` after about `length` characters; a little rest stays with the head."""
    if len(text) <= length + length // 4:
        return text, ""
    for match in _SPECIAL.finditer(text):
        if match.start() >= length:
            break
        if match.end() > length:
            length = match.end()
            break
    return text[:length], text[length:]


def mark_special_tokens(text: str) -> Markup:
    """Return `text` for the page: escaped, special tokens in boxes."""
    parts: list[Markup] = []
    end = 0
    for match in _SPECIAL.finditer(text):
        parts.append(escape(text[end : match.start()]))
        parts.append(Markup('<b class="token">{}</b>').format(match[0]))
        end = match.end()
    parts.append(escape(text[end:]))
    return Markup("").join(parts)
