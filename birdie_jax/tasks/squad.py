"""Questions on a paragraph, whose answers are spans of it: SQuAD (Rajpurkar et al., 2016; 2018).

    python -m birdie_jax.evaluate --workdir=runs/tiny --task=squad:path=dev-v2.0.json

As the Birdie paper measures it (section 4.4, appendix B): the answerable questions of SQuAD v2, zero-shot,
by greedy choice of at most 64 tokens, scored by "Answer Contains Label" and F1. Nothing is taught: the
paper does not fine-tune on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from birdie_jax.storage import Bounds
from birdie_jax.tasks.answer_metrics import contains, exact_match, f1
from birdie_jax.tasks.question import Question
from birdie_jax.tasks.records import DataPath
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.squad_file import read_squad
from birdie_jax.tasks.task import GenerationTask
from birdie_jax.text import DataError, Tokenizer

QuestionLimit = Annotated[int, Bounds(at_least=1, at_most=2**31)]


@register_task
@dataclass(frozen=True, kw_only=True)
class Squad(GenerationTask):
    r"""The answerable questions of a file of SQuAD v1.1 or v2.0.

    Attributes:
        main_metric: whether a reference is in the answer, the paper's "Answer Contains Label".
        path: the JSON file, or its URL.
        separator: the text between context and question. The paper gives the format as "contextquestion"
            (section 4.4) and shows no example; here an empty line is between them, as in FLAN's templates
            for questions on a passage, on which its models were tuned (A.2). A question that sticks to the
            last word of its context is `separator=""`.
        max_questions: the most questions that are asked, evenly spread over the file; None = all.
        skip_bad_records: whether questions that cannot be read are passed over and told, not refused.
    """

    name: ClassVar[str] = "squad"
    main_metric: ClassVar[str] = "contains"

    path: DataPath
    separator: str = "\n\n"
    max_questions: QuestionLimit | None = None
    skip_bad_records: bool = False

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return the answerable questions in the order of the file; the others are counted in one line."""
        del tokenizer
        found, refused = read_squad(self.path, skip_bad=self.skip_bad_records)
        questions = [
            Question(
                one.name,
                one.context + self.separator + one.question,
                tuple(dict.fromkeys(answer.text for answer in one.answers)),
            )
            for one in found
            if one.answers
        ]
        unanswerable = len(found) - len(questions)
        if not questions:
            raise DataError(
                f"{self.path}: holds no answerable question, and {unanswerable:,} unanswerable ones; "
                "allowed: at least one that has an answer"
            )
        if unanswerable:
            refused.append(f"{self.path}: {unanswerable:,} unanswerable questions are not asked")
        if self.max_questions is not None and self.max_questions < len(questions):
            asked = range(self.max_questions)
            questions = [questions[number * len(questions) // self.max_questions] for number in asked]
        return questions, refused

    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        """Return exact match, F1 and whether a reference is in the answer."""
        metrics = (exact_match, f1, contains)
        return {metric.__name__: metric(answer, question.references) for metric in metrics}
