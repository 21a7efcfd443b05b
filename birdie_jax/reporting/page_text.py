"""Formats numbers and examples as text of the page; a missing number is a dash.

In examples, special tokens are visible, and long passages are folded or truncated.
"""

import math
import re

from markupsafe import Markup, escape

from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_name

VISIBLE = 420  # the number of characters that are visible before a passage is unfolded
KEPT = 1600  # the maximum number of characters of a passage on the page

_SPECIAL = re.compile("|".join(re.escape(special_token_name(token)) for token in range(NUM_SPECIAL_TOKENS)))


def render_text(text: str) -> Markup:
    """Return `text` for the page: escaped, special tokens in boxes, and folded after its beginning.

    The end of a very long text is cut, with a note about its length. Cuts never divide a special token.
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
    """Split `text` after about `length` characters; a short rest stays with the head."""
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
    """Return `text` for the page: escaped, with special tokens in boxes."""
    parts: list[Markup] = []
    end = 0
    for match in _SPECIAL.finditer(text):
        parts.append(escape(text[end : match.start()]))
        parts.append(Markup('<b class="token">{}</b>').format(match[0]))
        end = match.end()
    parts.append(escape(text[end:]))
    return Markup("").join(parts)


NONE = "–"


def fixed(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` decimals."""
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else NONE


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent; a positive share that would round to 0 becomes "<0.1 %"."""
    if not math.isfinite(value):
        return NONE
    if 0 < value < 0.5 * 10 ** -(digits + 2):
        return f"<{10**-digits:.{digits}f} %"
    return f"{100 * value:.{digits}f} %"


def count(value: float | int) -> str:
    """Return a number with a unit of magnitude: 1.23 M."""
    if not math.isfinite(value):
        return NONE
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if unit == "k" else size)
            # From 999.5 on, three digits would be written 1e+03.
            return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:,.0f} {unit}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if not math.isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
