"""The model interface of tasks: answers, likelihoods and scores, computed in batches of similar lengths."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float32, Int32, PyTree

from birdie_jax.batch import Batch
from birdie_jax.batching import pack_rows, packed_length
from birdie_jax.config import Config
from birdie_jax.errors import PromptError, PromptTooLong, ScoreError
from birdie_jax.generation import GREEDY, Generator, Prompt, Sampling, cache_grows
from birdie_jax.generation.likelihood import Likelihood, Scorer
from birdie_jax.generation.prompt import bucket_length, power_of_two
from birdie_jax.generation.text_generation import TextAnswer, generate_texts
from birdie_jax.models import LanguageModel
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.layer_stacks import pattern_configs
from birdie_jax.models.predictions import predict_targets
from birdie_jax.models.registry import architecture_of, mixer_config
from birdie_jax.models.sample_scores import score_samples
from birdie_jax.models.task_head import head_type
from birdie_jax.objectives import Arm, Example
from birdie_jax.pruning import PruningSettings
from birdie_jax.tasks.question import LENGTH_GROUP, Question, prompt_of
from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

# (finished questions, all questions)
Progress = Callable[[int, int], None]


class Share(NamedTuple):
    """The division of questions between processes.

    Attributes:
        index: the index of this process.
        count: the number of processes.
        gather: a function from this process's text to the texts of all processes, in order. All processes
            call it together.
    """

    index: int = 0
    count: int = 1
    gather: Callable[[str], list[str]] = lambda text: [text]


class Workload(NamedTuple):
    """The work of a model for a task.

    Attributes:
        questions: the number of prompts or texts.
        tokens: the total number of tokens of the prompts or texts.
        longest: the largest number of tokens of a prompt with its answer, or of a text.
        answer_tokens: the largest total number of tokens of the answers.
    """

    questions: int
    tokens: int
    longest: int
    answer_tokens: int


Announce = Callable[[Workload], None]


def no_announcement(work: Workload) -> None:
    """Announce nothing."""


def no_progress(done: int, of_all: int) -> None:
    """Report nothing."""


def max_length_of(model: LanguageModel, config: Config) -> int | None:
    """Return the limit of a row's tokens: the training row length for encoders and attention; None = none.

    Attention with a window sees only distances up to its window. It has a limit only if its window is
    longer than the training rows.
    """
    mixers = [mixer_config(layer) for layer in pattern_configs(model.config)]
    wide = any(isinstance(own, AttentionConfig) and own.window > config.row_length for own in mixers)
    learned = wide or cache_grows(model) or architecture_of(model.config).encoder
    return config.row_length if learned else None


class FoundTokens(NamedTuple):
    """The model's predictions at the hidden positions of a text, from left to right.

    Attributes:
        tokens: int32 [places], the most probable tokens.
        losses: float32 [places], the losses of the right tokens in nats.
    """

    tokens: Int32[np.ndarray, " places"]
    losses: Float32[np.ndarray, " places"]


def longest_choices(questions: Sequence[Question], tokenizer: Tokenizer) -> list[int]:
    """Return the number of tokens of each question's longest choice, or else of its first reference."""
    choices = [question.choices or question.references[:1] for question in questions]
    tokens = iter(tokenizer.encode_batch([text for texts in choices for text in texts]))
    return [max(len(next(tokens)) for _ in texts) for texts in choices]


class TaskModel:
    """The model that a task measures.

    Attributes:
        tokenizer: the tokenizer of the model.
        arm: the objective arm that formats prompts.
        arm_in_place: the arm that hides tokens; None = unknown.
        max_length: the largest number of tokens of prompt and answer; None = no limit.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: PyTree,
        tokenizer: Tokenizer,
        arm: Arm,
        *,
        arm_in_place: Arm | None = None,
        max_length: int | None = None,
        rows: int = 32,
        batch_tokens: int = 65_536,
        share: Share | None = None,
        pruning: PruningSettings | None = None,
        announce: Announce = no_announcement,
    ):
        """Place the model on the devices of this process.

        Args:
            model: the model's architecture.
            params: the model's parameters, on the host or on a device of this process.
            tokenizer: the tokenizer of the model.
            arm: the objective arm that formats prompts.
            arm_in_place: the arm that hides tokens; None = unknown.
            max_length: the largest number of tokens of prompt and answer; None = no limit.
            rows: the largest number of questions in a batch.
            batch_tokens: the largest number of positions of a batch of prompts; one long prompt may have
                more.
            share: the part of the questions that this process answers; None = all.
            pruning: how to prune the prompts of generated answers; None = no pruning.
            announce: called with the workload before the work starts.

        Raises:
            PruningError: the model has attention, or the schedule does not match the model's layers.
        """
        self._pruning, self._announce = pruning, announce
        self.tokenizer, self.arm, self.max_length = tokenizer, arm, max_length
        self.arm_in_place = arm_in_place
        self._rows, self._batch_tokens, self._share = rows, batch_tokens, share or Share()
        self._generators: dict[Sampling, Generator] = {}
        self._generator = self._sampled_by(GREEDY, model, params)
        self._scorer = Scorer(self._generator)

    def replace_params(self, params: PyTree) -> None:
        """Replace the parameters of the model; keep the compiled programs."""
        self._generator.replace_params(params)
        # Generators for other sampling rules are created again when needed.
        self._generators = {GREEDY: self._generator}

    def _sampled_by(self, sampling: Sampling, model: LanguageModel, params: PyTree) -> Generator:
        """Return the generator for a sampling rule. All generators have the same parameters."""
        if sampling not in self._generators:
            self._generators[sampling] = Generator(
                model,
                params,
                num_tokens=NUM_SPECIAL_TOKENS + self.tokenizer.num_pieces,
                sampling=sampling,
                max_length=self.max_length,
                devices=jax.local_devices(),
                pruning=self._pruning,
            )
        return self._generators[sampling]

    def prompts(
        self, questions: Sequence[Question], refused: Sequence[str], max_tokens: int | Sequence[int]
    ) -> tuple[list[Question], list[Prompt], list[str]]:
        """Return the questions that the model can answer, with their prompts.

        Args:
            questions: all questions.
            refused: a message for each skipped record.
            max_tokens: the largest number of tokens of an answer, for all questions or for each.

        Returns:
            The questions, with the length of the prompt as a group; their prompts; and `refused` with a
            message for each question that is too long or does not fit the format of the prompts.
        """
        kept, prompts, refused = [], [], list(refused)
        limits = [max_tokens] * len(questions) if isinstance(max_tokens, int) else max_tokens
        for question, limit in zip(questions, limits, strict=True):
            try:
                prompt = prompt_of(question, self.arm.objective, self.tokenizer)
                prompt = prompt._replace(name=f"question {question.name}")
                self._generator.check_length(prompt, limit, prompt.name)
            except PromptError as error:
                refused.append(f"question {question.name}: {error}")
            except PromptTooLong as error:
                refused.append(str(error))
            else:
                groups = {**question.groups, LENGTH_GROUP: len(prompt.tokens)}
                kept.append(question._replace(groups=groups))
                prompts.append(prompt)
        return kept, prompts, refused

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int,
        progress: Progress = no_progress,
        *,
        stop_strings: Sequence[str] = (),
        sampling: Sampling = GREEDY,
        seeds: Sequence[int] | None = None,
    ) -> list[TextAnswer]:
        """Return the answer to each prompt. It does not depend on the other prompts.

        Args:
            prompts: the prompts.
            max_tokens: the largest number of tokens of an answer.
            progress: called with the number of answered prompts and the total.
            stop_strings: an answer ends before the first of these strings.
            sampling: the sampling rule.
            seeds: the random seed of each answer; None = 0 for all.
        """
        generator = self._sampled_by(sampling, self._generator.model, self._generator.params)

        def answer(batch: Sequence[int]) -> list[Any]:
            return generate_texts(
                generator,
                self.tokenizer,
                [prompts[number] for number in batch],
                max_tokens=max_tokens,
                seeds=[0 if seeds is None else seeds[number] for number in batch],
                stop_strings=stop_strings,
            )

        lengths = [len(prompt.tokens) for prompt in prompts]
        answers = self._in_batches(lengths, answer, progress, [max_tokens] * len(prompts))
        return [TextAnswer(*found) for found in answers]

    def choice_likelihoods(
        self,
        prompts: Sequence[Prompt],
        choices: Sequence[Sequence[str]],
        progress: Progress = no_progress,
    ) -> list[list[Likelihood]]:
        """Return the likelihood of each choice as the answer to its prompt. Each prompt is read once.

        Raises:
            ScoreError: the choices of a prompt have no most likely one; see `continuation_likelihoods`.
        """
        tokens = [[self.tokenizer.encode(text) for text in texts] for texts in choices]
        return self.continuation_likelihoods(prompts, tokens, progress)

    def continuation_likelihoods(
        self,
        prompts: Sequence[Prompt],
        continuations: Sequence[Sequence[np.ndarray]],
        progress: Progress = no_progress,
    ) -> list[list[Likelihood]]:
        """Return the likelihood of each continuation, int32 [tokens], of each prompt.

        Raises:
            ScoreError: a log-likelihood is NaN, or all of a prompt are -inf. The message names the prompt.
        """

        def score(batch: Sequence[int]) -> list[Any]:
            return self._scorer.score(
                [prompts[number] for number in batch], [continuations[number] for number in batch]
            )

        found = self._in_batches([len(prompt.tokens) for prompt in prompts], score, progress)
        likelihoods = [[Likelihood(*choice) for choice in of_question] for of_question in found]
        for prompt, of_prompt in zip(prompts, likelihoods, strict=True):
            _check_order(prompt.name, [one.log_likelihood for one in of_prompt])
        return likelihoods

    def text_losses(
        self,
        texts: Sequence[np.ndarray],
        progress: Progress = no_progress,
        *,
        stride: int | None = None,
    ) -> list[Float32[np.ndarray, " tokens"]]:
        """Return the loss in nats of each token of each text, read causally after a start token.

        If the model has a `max_length`, it reads longer texts in windows of that length.

        Args:
            texts: the tokens of each text, int32 [tokens].
            progress: called with the number of finished texts and the total.
            stride: the number of tokens that each window after the first adds; None = the whole window. A
                model without `max_length` reads whole texts and requires None.
        """

        def losses(batch: Sequence[int]) -> list[Any]:
            found = self._scorer.text_losses(
                [texts[number] for number in batch],
                window=self.max_length,
                stride=stride,
                rows=len(batch),
            )
            return [of_text.tolist() for of_text in found]

        found = self._in_batches([max(len(tokens), 1) for tokens in texts], losses, progress)
        return [np.array(of_text, np.float32) for of_text in found]

    def fill_in(self, examples: Sequence[Example], progress: Progress = no_progress) -> list[FoundTokens]:
        """Return the model's predictions at the labelled positions of each example.

        Args:
            examples: examples with labels on the context. Each has its own row.
            progress: called with the number of finished examples and the total.
        """
        generator = self._generator

        def fill(batch: Sequence[int]) -> list[Any]:
            packed = self._rows_of([examples[number] for number in batch])
            counts = packed.loss_mask.sum(axis=1).tolist()
            # Powers of two limit the number of compiled programs.
            places = min(power_of_two(max(counts)), packed.loss_mask.shape[1])
            given = Batch(*map(generator.programs.put_rows, packed))
            function = partial(predict_targets, generator.model, places)
            predict = generator.programs.compile("fill in", places, function, given)
            found = jax.device_get(predict(generator.params, given))
            return [
                (found.tokens[row, : counts[row]].tolist(), found.losses[row, : counts[row]].tolist())
                for row in range(len(batch))
            ]

        results = self._in_batches([packed_length(example) for example in examples], fill, progress)
        return [
            FoundTokens(np.array(tokens, np.int32), np.array(losses, np.float32))
            for tokens, losses in results
        ]

    def sample_scores(
        self, samples: Sequence[tuple[str, Example]], progress: Progress = no_progress
    ) -> list[Float32[np.ndarray, "items scores"]]:
        """Return the `head_scores` of samples, and check that they are finite.

        Args:
            samples: the name, for error messages, and the example of each sample.
            progress: called with the number of finished samples and the total.

        Raises:
            ScoreError: a score is not finite. The message names the sample.
        """
        found = self.head_scores([example for _, example in samples], progress)
        for (name, _), scores in zip(samples, found, strict=True):
            # With NaN scores, the first class would win.
            if not np.isfinite(scores).all():
                wrong = scores[~np.isfinite(scores)][0]
                raise ScoreError(f"{name}: found {wrong} among the head's scores; allowed: finite numbers")
        return found

    def head_scores(
        self, examples: Sequence[Example], progress: Progress = no_progress
    ) -> list[Float32[np.ndarray, "items scores"]]:
        """Return the scores of the model's head for each example. Each example has its own row.

        Args:
            examples: examples with a label on the first position; the label is ignored.
            progress: called with the number of finished examples and the total.

        Returns:
            For each example one item with its scores, or, if the head scores tokens, an item for each
            token.
        """
        generator = self._generator
        per_token = head_type(generator.model.config).per_token

        def score(batch: Sequence[int]) -> list[Any]:
            packed = self._rows_of([examples[number] for number in batch])
            given = Batch(*map(generator.programs.put_rows, packed))
            function = partial(score_samples, generator.model)
            scored = generator.programs.compile("head", 0, function, given)
            found = jax.device_get(scored(generator.params, given))
            lengths = [len(examples[number].context) if per_token else 1 for number in batch]
            return [found[row, :length].tolist() for row, length in enumerate(lengths)]

        results = self._in_batches([packed_length(example) for example in examples], score, progress)
        return [np.array(found, np.float32) for found in results]

    def _rows_of(self, examples: Sequence[Example]) -> Batch:
        """Return a batch with an example in each row. Its few shapes limit the number of compilations."""
        empty: list[Example] = []
        rows = [[one] for one in examples] + [empty] * (power_of_two(len(examples)) - len(examples))
        longest = bucket_length(max(map(packed_length, examples)))
        return pack_rows(rows, min(longest, self.max_length or longest), 0)

    def _in_batches(
        self,
        lengths: Sequence[int],
        ask: Callable[[Sequence[int]], list[Any]],
        progress: Progress,
        max_tokens: Sequence[int] = (),
    ) -> list[Any]:
        """Return the result of `ask` for each index; process batches of similar lengths, longest first.

        Each process computes its part of each batch, so all processes have the same number of batches.
        Processes exchange results as JSON, so results are plain data. The caller restores its own types.
        """
        answers = max_tokens or [0] * len(lengths)
        longest = max(map(sum, zip(lengths, answers, strict=True)), default=0)
        self._announce(Workload(len(lengths), sum(lengths), longest, sum(answers)))
        order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
        found: dict[int, Any] = {}
        done = 0
        while done < len(order):
            longest = bucket_length(lengths[order[done]])
            rows = max(1, min(self._rows, self._batch_tokens // longest))
            batch = order[done : done + rows * self._share.count]
            own = batch[self._share.index :: self._share.count]
            if own:
                found |= dict(zip(own, ask(own), strict=True))
            done += len(batch)
            progress(done, len(order))
        if self._share.count > 1:
            for text in self._share.gather(json.dumps(list(found.items()))):
                found |= dict(map(tuple, json.loads(text)))
        return [found[number] for number in range(len(lengths))]

    def generate_tokens(
        self, prompts: Sequence[Prompt], max_tokens: Sequence[int], progress: Progress = no_progress
    ) -> list[tuple[int, ...]]:
        """Return the tokens of the greedy answer to each prompt, including a stop token.

        Args:
            prompts: the prompts.
            max_tokens: the largest number of tokens of the answer to each prompt.
            progress: called with the number of answered prompts and the total.
        """

        def answer(batch: Sequence[int]) -> list[Any]:
            tokens: list[list[int]] = [[] for _ in batch]
            chunks = self._generator.generate_chunks(
                [prompts[number] for number in batch],
                [max_tokens[number] for number in batch],
                [0] * len(batch),
            )
            for chunk in chunks:
                for row, new in zip(tokens, chunk, strict=True):
                    row.extend(new.tolist())
            return tokens

        lengths = [len(prompt.tokens) for prompt in prompts]
        answers = self._in_batches(lengths, answer, progress, max_tokens)
        return [tuple(found) for found in answers]


def _check_order(name: str, log_likelihoods: Sequence[float]) -> None:
    """Check that one of the log-likelihoods is the highest; else the first choice would win."""
    if np.isnan(log_likelihoods).any() or (len(log_likelihoods) and max(log_likelihoods) == -np.inf):
        raise ScoreError(
            f"{name}: found the log-likelihoods {', '.join(map(str, log_likelihoods))}; allowed: numbers, "
            "at least one of them finite; a model that has diverged gives NaN"
        )
