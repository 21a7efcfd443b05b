"""Bad settings of tasks are refused before a task reads data."""

import pytest

from birdie_jax.errors import ConfigError
from birdie_jax.tasks import task_of_flag

GLUE, JSONL, LABELLED = "glue:path=x,dataset=", "jsonl:path=x,", "labelled_text:path=x,classes="
COPYING = "copying_by_length:lengths="
SPANS = "squad_spans:path=x,stride="
REFUSED = [
    ("associative_recall:sequence_length=63", "sequence_length: found 63; allowed: an even number"),
    ("associative_recall:key_value_pairs=17", "allowed: an even number of at least 4 key_value_pairs = 68"),
    ("associative_recall:vocab_size=64", "vocab_size: found 64; allowed: more than sequence_length = 64"),
    ("associative_recall:power_a=0", "associative_recall.power_a: found 0"),
    (f"{COPYING}[]", "copying_by_length: lengths: found []; allowed: one length or more, increasing"),
    (f"{COPYING}[8,8]", "copying_by_length: lengths: found [8, 8]; allowed"),
    ("deshuffling_by_length:source=", "source: found ''; allowed: stdlib"),
    ("deshuffling_by_length:rate=0", "deshuffling_by_length.rate: found 0"),
    (f"{GLUE}rte,split=dev_matched", "split: found 'dev_matched'; allowed for rte: dev, train"),
    (f"{GLUE}mnli,split=dev", "allowed for mnli: dev_matched, dev_mismatched, train"),
    (f"{GLUE}mnli,split=test", "test_matched, test_mismatched"),
    (f"{GLUE}snli", "dataset: found 'snli'"),
    ("glue:dataset=rte", "path: missing; glue needs it"),
    (f"{GLUE}rte,max_positions=3", "max_positions: found 3; allowed: "),
    (f"{GLUE}rte,phenomena=a.tsv", "phenomena: found 'a.tsv'; allowed for rte: none"),
    (f"{GLUE}cola,split=test,phenomena=a.tsv", "phenomena: found 'a.tsv'; allowed for test: none"),
    ("instructions:path=x,template={% if %}", "instructions: template: line 1: "),
    ("instructions:path=x,turns=first", "instructions.turns: found 'first'"),
    ('instructions:path=""', "instructions.path: found ''; allowed: a text that is not empty"),
    (f"{JSONL}metrics=[]", "metrics: found []; allowed: one or more of exact_match, f1, contains,"),
    (f'{JSONL}metrics=["rouge"]', "metrics: found ['rouge']; allowed: one or more of "),
    (f'{JSONL}metrics=["f1","f1"]', "metrics: found ['f1', 'f1']; allowed: one or more of "),
    (f'{JSONL}metrics=["bits_per_byte","f1"]', "allowed: bits_per_byte alone, because it is a mean over b"),
    (f"{JSONL}metrics=f1", "--task=jsonl.metrics: found 'f1' (str); allowed: a list of str"),
    (f'{JSONL}group_fields=["prompt_tokens"]', "group_fields: found ['prompt_tokens']; allowed: each once"),
    (
        f'{JSONL}metrics={{"f1": 1, "f1": 2}}',
        "--task=jsonl.metrics: has the field 'f1' twice; allowed: once",
    ),
    (f"{JSONL}metrics={'[' * 100_000}", "jsonl.metrics: found '[[["),
    (f"{JSONL}max_tokens=0", "--task=jsonl.max_tokens: found 0; allowed: at least 1"),
    (f'{LABELLED}["a"]', "classes: found ['a']; allowed: two or more, each once"),
    (f'{LABELLED}["a","a"]', "classes: found ['a', 'a']; allowed: two or more, each once"),
    (f'{LABELLED}["a","b"],head_name=pooler', "head_name: found 'pooler'; allowed: another name"),
    (f'{LABELLED}["a","b"],group_fields=["prompt_tokens"]', "group_fields: found ['prompt_tokens']; allo"),
    ("masked_text", "--task=masked_text: found path='' and prepared=''; allowed: one of them"),
    ("masked_text:path=x,mask_share=0.9,random_share=0.2", "random_share: found 0.2; allowed: at most 1"),
    ("noisy_recall:items=65,values=99,keys=99", "items: found 65, of 1 tokens each; allowed: at most 64"),
    ("noisy_recall:query=last,items=33,values=99", "items: found 33, of 2 tokens each; allowed: at most"),
    ("noisy_recall:values=3", "values: found 3; allowed: at least items = 4"),
    ("noisy_recall:keys=2", "keys: found 2; allowed: at least items = 4"),
    ("noisy_recall:query=both", "noisy_recall.query: found 'both'"),
    ("perplexity", "found path='' and prepared=''; allowed: one of them"),
    ("perplexity:path=a,prepared=b", "found path='a' and prepared='b'; allowed: one of them"),
    ("perplexity:path=a,window=8,stride=9", "stride: found 9; allowed: at most the window, 8"),
    ("perplexity:path=a,window=0", "perplexity.window: found 0; allowed: at least 1"),
    ("perplexity:path=a,split=test", "perplexity.split: found 'test'; allowed: train, validation"),
    ("phonebook:min_entries=900", "min_entries: found 900; allowed: at most max_entries = 800"),
    ("phonebook:min_numbers=33", "min_numbers: found 33; allowed: at most max_numbers = 32"),
    ("phonebook:max_entries=16", "max_numbers: found 32; allowed: at most max_entries = 16"),
    ("phonebook:number_format=##-", "number_format: found '##-'; allowed: 1 to 15 times #"),
    ("phonebook:number_format=##", "enough digits for max_entries = 800 different numbers"),
    ("phonebook:name_words=3", "phonebook.name_words: found 3; allowed: 1, 2"),
    ("phonebook:question=above", "phonebook.question: found 'above'; allowed: both, before, after"),
    ("phonebook:max_entries=0", "phonebook.max_entries: found 0; allowed: at least 1"),
    ("selective_copying_by_length:lengths=[64],spans=3", "selective_copying: max_length: found 64"),
    ("squad", "--task=squad.path: missing; squad needs it"),
    ("squad:path=x,max_questions=0", "squad.max_questions: found 0"),
    (f"{SPANS}500", "stride: found 500; allowed: at most max_positions - "),
    (f"{SPANS}1,max_positions=67", "max_positions: found 67; allowed: at least max_question_tokens"),
]


@pytest.mark.parametrize(("flag", "message"), REFUSED)
def test_bad_settings_are_refused(flag, message):
    with pytest.raises(ConfigError) as refused:
        task_of_flag(flag)
    assert message in str(refused.value)
