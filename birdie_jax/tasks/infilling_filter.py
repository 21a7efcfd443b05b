"""Filter stories with a blank entry, as the Birdie paper does (appendix C), for the task `infilling`.

    python -m birdie_jax.tasks.infilling_filter --input=all.jsonl --output=distinct.jsonl
    python -m birdie_jax.tasks.infilling_filter --input=all.jsonl --votes=votes.jsonl --output=stories.jsonl

The first step keeps one of the stories whose words have a Jaccard similarity of at least --similarity. With
--votes, a second step keeps a story if more than half of the judges vote for its label. Each line of the
file of votes is a JSON object with `id` (of the story; its line number if it has none), `judge` (the name
of a model) and `vote` (true or false). Every judge must vote once on every story that the first step keeps.
"""

from absl import flags

from birdie_jax.command_line import define_path, start
from birdie_jax.errors import ConfigError, DataError, one_line
from birdie_jax.generation.answering import to_jsonl
from birdie_jax.storage import write_whole
from birdie_jax.storage.outputs import Input, Output, check_outputs
from birdie_jax.tasks.story_filter import SIMILARITY, filter_stories, read_stories, read_votes
from birdie_jax.text.locations import locate, reason

_INPUT = define_path("input", "JSONL file of stories, or its URL.", required=True)
_OUTPUT = define_path("output", "JSONL file for the stories that are kept, or its URL.", required=True)
_VOTES = define_path("votes", "JSONL file of the judges' votes; default: no vote decides.")
_SIMILARITY = flags.DEFINE_float(
    "similarity", SIMILARITY, "Least Jaccard similarity of words of two near duplicates."
)


def main(arguments: list[str]) -> None:
    """Filter the stories that the flags name, and print the counts."""
    del arguments
    if not 0 < _SIMILARITY.value <= 1:
        raise ConfigError(f"--similarity: found {_SIMILARITY.value}; allowed: more than 0 and at most 1")
    read = [Input("--input", _INPUT.value)]
    if _VOTES.value is not None:
        read.append(Input("--votes", _VOTES.value))
    check_outputs([Output("--output", _OUTPUT.value)], read)
    output = locate(_OUTPUT.value)
    stories = read_stories(_INPUT.value)
    votes = None if _VOTES.value is None else read_votes(_VOTES.value)
    kept, lines = filter_stories(stories, votes, _VOTES.value or "", _SIMILARITY.value)
    try:
        write_whole(output, to_jsonl(story.record for story in kept).encode())
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {reason(error)}") from error
    print("\n".join(lines))
    print(f"in {one_line(str(output))}")


if __name__ == "__main__":
    start("tasks.infilling_filter", main)
