"""The phone book is learned with the paper's values, and by the quickstart's model in small."""

from birdie_jax.tasks.evaluation import tasks_of_config
from birdie_jax.tasks.phonebook import Phonebook
from tests.configs.test_every_config import load
from tests.tasks.tokenizers import word_tokenizer


def measured(config):
    (named,) = tasks_of_config(config.eval.tasks, "config.eval.tasks")
    assert isinstance(named.task, Phonebook)
    return named.task


def test_the_phone_book_is_learned_as_in_the_paper():
    config = load("finetune_phonebook")
    assert config.finetune.stages == {
        "phonebook": {"task": "phonebook", "length": 16_384, "rows": 32, "steps": 250}
    }
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.final_learning_rate, optimizer.weight_decay) == (
        5e-5,
        5e-5,
        0,
    )
    assert optimizer.warmup_steps == 0
    assert measured(config) == Phonebook(num_questions=96)
    assert config.model == load("birdie_1_4b").model
    assert load("finetune_phonebook", "110m,hawk").model == load("birdie_110m", "hawk").model


def test_a_tiny_phone_book_fits_the_quickstarts_model():
    config = load("finetune_phonebook", "tiny")
    assert config.model == load("tiny").model
    task = measured(config)
    assert task.max_positions == config.finetune.stages["phonebook"]["length"] == config.batching.length
    questions, refused = task.questions(word_tokenizer())
    assert (len(questions), refused) == (96, ())
