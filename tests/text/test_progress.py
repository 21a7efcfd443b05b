import io

import pytest
import rich.console

from birdie_jax.text import progress as progress_module
from birdie_jax.text.progress import PreparationProgress


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_are_printed_at_intervals(capsys, clock):
    with PreparationProgress(10_000_000, enabled=True) as progress:
        progress.start_stage("token shards", done_bytes=2_000_000, tokens=1_000)
        for seconds in range(1, 101):
            clock[0] = 100.0 + seconds
            progress.update(2_000_000 + 10_000 * seconds, seconds, 1_000 + 500 * seconds)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "token shards: 10.0 MB of source",
        "token shards: 23.0 % of the source, 30 documents, 16,000 tokens, 500 tokens/s, 770 s left",
        "token shards: 26.0 % of the source, 60 documents, 31,000 tokens, 500 tokens/s, 740 s left",
        "token shards: 29.0 % of the source, 90 documents, 46,000 tokens, 500 tokens/s, 710 s left",
    ]


def test_nothing_is_printed_if_disabled(capsys, clock):
    with PreparationProgress(100, enabled=False) as progress:
        progress.start_stage("token shards")
        clock[0] += 1000
        progress.update(50, 1, 10)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_terminal_shows_a_bar(monkeypatch):
    written = io.StringIO()
    terminal = rich.console.Console(file=written, force_terminal=True, width=160)
    monkeypatch.setattr(progress_module.rich.console, "Console", lambda **_: terminal)
    with PreparationProgress(2_000_000, enabled=True) as progress:
        progress.start_stage("tokenizer")
        progress.start_stage("token shards")
        progress.update(1_000_000, 1_234, 56_789)
    shown = written.getvalue()
    assert "token shards" in shown
    assert "1.0/2.0 MB" in shown
    assert "1,234 documents, 56,789 tokens" in shown
    assert "tokens/s" in shown
