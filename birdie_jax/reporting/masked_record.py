"""What a model put in the places of hidden tokens, as masked_samples.json describes it."""

from dataclasses import dataclass

from birdie_jax.reporting.json_file import is_there, read_json_object
from birdie_jax.reporting.record_error import RecordError
from birdie_jax.storage.typed import parse_typed
from birdie_jax.storage.workdir import Workdir


@dataclass(frozen=True)
class HiddenToken:
    """A token that masked LM chose.

    Attributes:
        token: the token as text.
        shown: what the model saw in its place: [MASK], another token, or the token itself.
        found: the token that the model found most probable there.
        is_right: whether that is the token.
        probability: the probability of what was found.
        loss: the loss in nats.
    """

    token: str
    shown: str
    found: str
    is_right: bool
    probability: float
    loss: float


@dataclass(frozen=True)
class MaskedSample:
    """A held-out text with hidden tokens.

    Attributes:
        arm: the name of the arm that chose them.
        texts: what stands before, between and behind the hidden tokens.
        hidden: the hidden tokens.
    """

    arm: str
    texts: tuple[str, ...]
    hidden: tuple[HiddenToken, ...]


@dataclass(frozen=True)
class MaskedRecord:
    """What a run filled in at its end.

    Attributes:
        step: the train step.
        samples: the texts.
    """

    step: int
    samples: tuple[MaskedSample, ...]


def read_masked_samples(files: Workdir) -> MaskedRecord | None:
    """Return what the run filled in; None where it has written nothing of the kind.

    Raises:
        RecordError: the file is damaged; the message names it and the record.
    """
    path = files.masked_samples
    if not is_there(path):
        return None
    record = parse_typed(MaskedRecord, read_json_object(path), str(path), RecordError)
    for number, sample in enumerate(record.samples):
        if len(sample.texts) != len(sample.hidden) + 1:
            raise RecordError(
                f"{path}.samples[{number}].texts: found {len(sample.texts)} for {len(sample.hidden)} "
                "hidden tokens; allowed: one more"
            )
    return record
