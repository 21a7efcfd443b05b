"""The command `generate` with a saved context, and its one-line errors."""

import json

import pytest

from birdie_jax.models.attention import AttentionConfig
from tests.forked_verbs import run_commands
from tests.trained_workdirs import micro_config, small_tokenizer, write_workdir

TEXT = "abc abc hello naïve def " * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of a causal model with different parameters, one run with attention, and a text."""
    folder = tmp_path_factory.mktemp("states")
    write_workdir(folder / "run", micro_config(bidirectional=False), steps=(5,))
    write_workdir(folder / "other", micro_config(bidirectional=False), steps=(9,))
    attention = micro_config(name="transformer", sections=(AttentionConfig(heads=2),))
    write_workdir(folder / "attention", attention, steps=(5,))
    (folder / "book.txt").write_text(TEXT)
    (folder / "empty.txt").write_text("")
    (folder / "latin.txt").write_bytes(b"na\xefve")
    questions = [{"prompt": text, "id": number} for number, text in enumerate(["abc", "hello de"])]
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    return folder


@pytest.mark.slow
def test_a_state_gives_the_answers_of_the_whole_prompt(folder):
    """A causal model gives the same answers; the text ends with a space, where tokens end anyway."""
    run, state = f"--workdir={folder / 'run'}", folder / "book.state"
    options = ("--max_tokens=8", "--temperature=1", "--seed=3")
    read = ("generate", run, f"--context_file={folder / 'book.txt'}", "--context_chunk=64", *options)
    questions = f"--prompt_file={folder / 'questions.jsonl'}"
    ((status, saved, error),) = run_commands([(*read, f"--save_state={state}", questions)])
    assert (status, error.count("Traceback")) == (0, 0), error
    # The arm of this mixture has a marker.
    count = 1 + len(small_tokenizer().encode(TEXT))
    assert f"{state}: the state after {count} tokens, {state.stat().st_size:,} bytes\n" in error
    load = ("generate", run, f"--load_state={state}", *options)
    results = run_commands(
        [
            (*load, "--prompt=abc"),
            ("generate", run, f"--prompt={TEXT}abc", *options),
            (*read, "--prompt=abc"),
            (*load, questions),
        ]
    )
    assert [status for status, *_ in results] == [0] * 4, results
    from_state, whole, at_once, together = (output for _, output, _ in results)
    assert (from_state, together) == (at_once, saved)
    tokens = small_tokenizer().encode
    assert [*tokens(TEXT), *tokens("abc")] == [*tokens(TEXT + "abc")], "the tokenizer joins nothing there"
    assert from_state == whole
    answers = [json.loads(line) for line in together.splitlines()]
    assert [answer["id"] for answer in answers] == [0, 1]
    assert answers[0]["generated"] + "\n" == from_state


@pytest.mark.slow
def test_invalid_flags_are_refused(folder):
    run, book, state = f"--workdir={folder / 'run'}", f"--context_file={folder / 'book.txt'}", folder / "s"
    ask, save, load = "--prompt=abc", f"--save_state={state}", f"--load_state={state}"
    (made,) = run_commands([("generate", run, book, save)])
    assert made[0] == 0, made
    cases = {
        (run, book, load, ask): "give either --context_file, a text to read, or --load_state, a saved ",
        (run, save): f"--save_state={state}: requires --context_file, which is not given",
        (run, "--context_chunk=8", ask): "--context_chunk=8: requires --context_file, which is not given",
        (run, book): "give either --prompt, which may be repeated, or --prompt_file",
        (run, f"--context_file={folder / 'empty.txt'}", save): (
            f"{folder / 'empty.txt'}: the prompt is empty (found 0 characters); prefix_lm allows: "
        ),
        (run, f"--context_file={folder / 'no.txt'}", save): f"{folder / 'no.txt'}: cannot be read: No such",
        (run, f"--context_file={folder}", save): f"{folder}: is a folder; allowed: a regular file",
        (run, f"--context_file={folder / 'latin.txt'}", save): (
            f"{folder / 'latin.txt'}: byte 2: found b'\\xef'; allowed: UTF-8 text"
        ),
        (
            run,
            book,
            f"--save_state={folder / 'no' / 'state'}",
        ): f"--save_state={folder / 'no' / 'state'}: found no folder {folder / 'no'}; allowed: ",
        (run, book, f"--save_state={folder / 'book.txt'}"): (
            f"--save_state={folder / 'book.txt'}: is what --context_file reads; allowed: another name"
        ),
        (run, ask, "--pruning=policy=random"): "--pruning: found 'policy=random'; allowed: with --keep be",
        (run, ask, "--temperature=1e-38"): "--temperature: found 1e-38; allowed: 0, which is greedy, or ",
        (run, f"--load_state={folder / 'no'}", ask): f"{folder / 'no'}: not found; allowed: a file that ",
        (
            run,
            f"--load_state={folder / 'book.txt'}",
            ask,
        ): f"{folder / 'book.txt'}: is damaged, or is not a saved",
        (f"--workdir={folder / 'other'}", load, ask): (
            f"{state}: belongs to gated_ssm_plus of {folder / 'run'} step 5 (config "
        ),
        (run, load, ask, "--objective=copying"): (
            f"objective copying: {state} was read in the form of prefix_lm; allowed: that one"
        ),
        (run, book, save, "--objective=span_corruption"): (
            f"{folder / 'book.txt'}: objective span_corruption: a question cannot follow a text that was "
            "read in its form; allowed: prefix_lm, copying, deshuffling, causal_lm"
        ),
        (f"--workdir={folder / 'attention'}", book, save): "transformer: its state grows by ",
    }
    results = run_commands([("generate", *arguments) for arguments in cases])
    for (status, output, error), message in zip(results, cases.values(), strict=True):
        assert (status, output) == (2, ""), (message, error)
        assert error.startswith(f"birdie_jax.generate: {message}"), error
        assert error.count("\n") == 1
