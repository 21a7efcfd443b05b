"""Every unusable configuration is refused with the field, the found value and the allowed ones."""

import dataclasses

import ml_collections
import pytest

from birdie_jax.bandit import POLICIES
from birdie_jax.command_line import subscript_keywords
from birdie_jax.config import Config, check_used, default_config, parse_config, to_dict
from birdie_jax.errors import ConfigError
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.hawk import HawkConfig


def refusal(change):
    config = default_config().unlock()
    change(config)
    with pytest.raises(ConfigError) as error:
        parse_config(config)
    return str(error.value)


def set_field(path, value):
    def change(config):
        *sections, leaf = path.split(".")
        for section in sections:
            config = config[section]
        with config.ignore_type():
            config[leaf] = value

    return change


def test_default_is_usable_and_round_trips():
    config = parse_config(default_config())
    assert config == Config()
    assert parse_config(ml_collections.ConfigDict(to_dict(config))) == config
    assert to_dict(config)["optimizer"]["learning_rate"] == 1e-3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            *("optimizer.learning_rates", 1.0),
            "config.optimizer.learning_rates: unknown field; allowed: learning_rate, "
            "final_learning_rate, name, warmup_steps, beta1, beta2, epsilon, momentum, weight_decay, "
            "clip_norm, schedule, decay_steps, decay_shape",
        ),
        ("optimizer.schedule", "flat", "'flat'; allowed: cosine, linear, wsd"),
        ("mesh.fsdp", -2, "-2; allowed: -1, 0 or at least 1"),
        ("mesh.data", 0, "0; allowed: -1 or at least 1"),
        ("mesh.tensor", -1, "config.mesh: found -1 for data and tensor; allowed: -1 for one axis"),
        ("batching.rows", "eight", "'eight' (str); allowed: int"),
        ("batching.rows", True, "True (bool); allowed: int"),
        ("batching.rows", 0, "0; allowed: at least 1"),
        ("optimizer.learning_rate", float("nan"), "nan; allowed: a finite number"),
        ("optimizer.learning_rate", -1, "-1.0; allowed: more than 0"),
        (
            *("train.accumulation_steps", 7),
            "config.batching.rows: found 512; allowed: a multiple of train.accumulation_steps = 7",
        ),
        ("batching.spacing", -1, "-1; allowed: at least 0"),
        ("batching.spacing", 2, "2; allowed: at least model.gated_ssm.conv_width - 1 = 3"),
        (
            *("model.name", "mamba3"),
            "'mamba3'; allowed: mamba, mamba2, gated_ssm_plus, birdie_ssm, gated_deltanet, gated_ssm, "
            "gated_ssm_mlp, griffin, hawk, hawk_mlp, transformer, bigs, gated_attention, stack_attention, "
            "stack_ssm",
        ),
        ("model.state", 33, "33; allowed: an even number: half of it runs in reverse"),
        ("model.gated_ssm", 3, "3; allowed: a section with fields"),
        ("model.gated_ssm.conv_width", 0, "0; allowed: at least 1"),
        ("model.hawk.conv_width", 0, "0; allowed: at least 1"),
        ("model.hawk.heads", 0, "0; allowed: at least 1"),
        ("model.attention.heads", 0, "0; allowed: at least 1"),
        ("model.attention.window", -1, "-1; allowed: at least 0"),
        ("model.attention.kv_heads", -1, "-1; allowed: at least 0"),
        ("model.attention.rope_base", 1, "1.0; allowed: more than 1"),
        (
            *("model.heads", 4),
            "config.model.heads: unknown field; allowed: head, name, layers, features, state, "
            "mlp_features, bidirectional, tie_embeddings, dtype, scan_dtype, scan_implementation, remat, "
            "norm_epsilon, norm_offset, mlp_bias, mlp_activation, embedding_scale, residual_dtype, "
            "start_token, begin_token, end_token, min_predicted_id, max_predicted_id, logit_soft_cap, "
            "dropout, head_name, head_outputs, head_dropout, attention, birdie_ssm, encoder, "
            "gated_deltanet, gated_ssm, griffin, hawk, mamba, mamba2; such a field is "
            "config.model.attention.heads and config.model.gated_deltanet.heads and "
            "config.model.hawk.heads",
        ),
        ("model.begin_token", 2, "2; allowed: an id of text, at least 256, or 0 for none"),
        ("model.birdie_ssm.input_activation", "relu", "'relu'; allowed: tanh, sigmoid, gelu, identity"),
        (
            *("model.attention.implementation", "flash"),
            "'flash'; allowed: splash, '', xla, cudnn, splash_interpret",
        ),
        (
            *("data.corpora", {"a": {"source": "b", "weight": 0.0}}),
            "config.data.corpora.a.weight: found 0.0; allowed: more than 0",
        ),
        (
            *("data.corpora", {"a": {"source": "b", "epochs": 3}}),
            "config.data.corpora.a.epochs: unknown field; allowed: max_epochs, source, prepared, weight",
        ),
        ("data.validation_fraction", 1.5, "1.5; allowed: more than 0 and less than 1"),
        ("bandit.policy", "greedy", f"'greedy'; allowed: {', '.join(sorted(POLICIES))}"),
        ("bandit.explore_from", 1.5, "1.5; allowed: between 0 and 1"),
        ("checkpoint.keep", 1, "1; allowed: at least 2"),
        ("train.loss_chunk", 300, "300; allowed: a divisor of batching.length = 2048, or more than it"),
        ("data.record_tokens", 100, "100; allowed: at least batching.length = 2048"),
        ("model", 3, "3; allowed: a section with fields"),
    ],
)
def test_refusals(path, value, message):
    """An incomplete message follows the path of the field."""
    whole = message if message.startswith("config.") else f"config.{path}: found {message}"
    assert refusal(set_field(path, value)) == whole


def test_missing_field():
    assert (
        refusal(lambda config: config.train.__delitem__("num_steps")) == "config.train.num_steps: missing"
    )


EVEN = "a divisor of model.features = 64 into heads of an even width"


@pytest.mark.parametrize(
    ("section", "fields", "allowed"),
    [
        ("hawk", {"heads": 12}, "a divisor of model.state = 64"),
        ("attention", {"heads": 20}, EVEN),
        ("attention", {"heads": 64}, EVEN),
        (
            "attention",
            {"heads": 8, "kv_heads": 3},
            "a divisor of model.attention.heads = 8, or 0 for as many",
        ),
        (
            *("attention", {"heads": 8, "rotary_share": 0.3}),
            "a share that is an even number of the 8 channels of a head",
        ),
    ],
)
def test_heads_that_do_not_divide_are_refused_for_models_with_heads(section, fields, allowed):
    def change(config, name={"hawk": "hawk", "attention": "transformer"}[section]):
        config.model.update({"name": name, "features": 64, "state": 64, section: fields})

    *_, (field, value) = fields.items()
    assert refusal(change) == f"config.model.{section}.{field}: found {value}; allowed: {allowed}"
    harmless = default_config()
    change(harmless, name="gated_ssm")
    assert to_dict(parse_config(harmless))["model"][section].items() >= fields.items()


def test_a_share_that_binary_fractions_cannot_express_is_accepted():
    """0.55 of 40 channels is 22.000000000000004 as a float."""
    config = default_config()
    config.model.update(
        {"name": "transformer", "features": 80, "attention": {"heads": 2, "rotary_share": 0.55}}
    )
    assert parse_config(config).model.section(AttentionConfig).rotary_share == 0.55


def test_a_kernel_is_refused_for_decays_by_channel():
    def change(config):
        section = {"channel_decay": True}
        config.model.update({"name": "gated_deltanet", "gated_deltanet": section})
        config.model.scan_implementation = "pallas_gpu"

    assert refusal(change) == (
        "config.model.scan_implementation: found 'pallas_gpu'; allowed: xla, or empty, with "
        "model.gated_deltanet.channel_decay, which has no kernel"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"finetune.teacher.hidden": 0.5},
            "hidden: found 0.5; allowed: 0.0 without config.finetune.teacher.from",
        ),
        (
            {"finetune.teacher.logits": 0.9},
            "logits: found 0.9; allowed: 0.5 without config.finetune.teacher.from",
        ),
        (
            {"finetune.teacher.temperature": 2.0},
            "found 2.0; allowed: 1.0 without config.finetune.teacher.from",
        ),
        (
            {"finetune.lora.maps": "*/mixer/*"},
            "maps: found '*/mixer/*'; allowed: '*' without config.fin",
        ),
        (
            {"finetune.pruning.norm": "l2"},
            "found 'l2'; allowed: 'absolute' without config.finetune.pruning.max",
        ),
        (
            {"data.source": "a.txt", "data.corpora": {"a": {"source": "b.txt"}}},
            "config.data.source: found 'a.txt'; allowed: none beside config.data.corpora, whose entries h",
        ),
        ({"data.corpora": {"a": {"source": "b.txt"}}}, ""),
        (
            {"train.gate_statistics_every_steps": 10, "finetune.stages": {"a": {}}},
            "found 10; allowed: 0 with config.finetune.stages: only pre-training measures gates",
        ),
        ({"train.gate_statistics_every_steps": 10}, ""),
        ({"finetune.teacher.from": "runs/a@3", "finetune.teacher.hidden": 0.5}, ""),
    ],
)
def test_a_field_that_another_makes_useless_is_refused(fields, message):
    config = default_config().unlock()
    for path, value in fields.items():
        set_field(path, value)(config)
    # A saved configuration may have the defaults of an earlier version.
    parsed = parse_config(config)
    if not message:
        check_used(parsed)
        return
    with pytest.raises(ConfigError) as caught:
        check_used(parsed)
    assert str(caught.value).startswith(f"config.{next(iter(fields))}: found ") and message in str(
        caught.value
    )


def test_shapes_unsupported_by_splash_attention_are_refused():
    """Its kernel has one bound per query; a context in both directions needs two."""

    def change(config, length=2048, bidirectional=True):
        attention = {"implementation": "splash", "window": 64}
        config.model.update(name="transformer", bidirectional=bidirectional, attention=attention)
        config.batching.length = length

    assert refusal(change) == (
        "config.model.attention.window: found 64; allowed: 0 for model.attention.implementation splash "
        "with model.bidirectional"
    )
    assert refusal(lambda config: change(config, length=1000, bidirectional=False)) == (
        "config.batching.length: found 1000; allowed: a multiple of 128, the block of "
        "model.attention.implementation splash"
    )
    causal = default_config()
    change(causal, bidirectional=False)
    assert parse_config(causal).model.section(AttentionConfig).window == 64


def test_attention_over_divided_rows_is_refused():
    def change(config):
        config.model.name = "transformer"
        config.mesh.sequence = 2

    assert refusal(change) == (
        "config.mesh.sequence: found 2; allowed: 1 for transformer: attention reads whole rows"
    )


def test_a_saved_configuration_restores_a_mixers_section():
    config = default_config()
    config.model.name = "hawk"
    config.model.hawk.heads = 8
    parsed = parse_config(config)
    assert parsed.model.section(HawkConfig) == HawkConfig(heads=8)
    assert parsed.model.sections == (HawkConfig(heads=8),)
    assert parse_config(ml_collections.ConfigDict(to_dict(parsed))) == parsed


@pytest.mark.parametrize(("name", "conv_width", "spacing"), [("gated_ssm", 4, 0), ("hawk", 2, 1)])
def test_spacing_must_cover_the_reach_of_the_convolution(name, conv_width, spacing):
    config = default_config()
    config.model.name = name
    config.model.hawk.conv_width = conv_width
    config.batching.spacing = spacing
    assert parse_config(config).batching.spacing == spacing


def test_spacing_must_cover_the_convolutions_of_a_hybrid():
    config = default_config()
    config.model.name, config.model.griffin.pattern = "griffin", "mamba,gated_ssm_plus"
    config.model.gated_ssm.conv_width, config.batching.spacing = 5, 3
    message = r"config\.batching\.spacing: found 3; allowed: at least model\.gated_ssm\.conv_width - 1 = 4"
    with pytest.raises(ConfigError, match=message):
        parse_config(config)
    config.model.griffin.pattern = "mamba,gated_ssm_mlp"
    assert parse_config(config).batching.spacing == 3


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("mamba2", {"head_features": 16, "groups": 3}, "groups: found 3; allowed: 1, or an even number"),
        ("mamba2", {"head_features": 32}, "head_features: found 32; allowed: an even number of heads"),
        (
            "gated_deltanet",
            {"heads": 6, "key_heads": 3},
            "key_heads: found 3; allowed: 1, or an even number",
        ),
        ("gated_deltanet", {"heads": 3}, "heads: found 3; allowed: an even number"),
    ],
)
def test_heads_of_two_directions_are_paired(name, fields, message):
    config = default_config()
    config.model.name, config.model.state = name, 96
    config.model[name].update(fields)
    with pytest.raises(ConfigError, match=rf"config\.model\.{name}\.{message}"):
        parse_config(config)
    config.model.bidirectional = False
    assert parse_config(config).model.name == name


def test_a_python_keyword_can_be_a_field_on_the_command_line():
    given = [
        "train",
        "--config=a.py",
        "--config.init.from=runs/a.b=c",
        "--config.seed=3",
        "--config.init.from",
        "--config.finetune.stages.1_flan.rows=4",
    ]
    assert subscript_keywords(given) == [
        *("train", "--config=a.py", '--config.init["from"]=runs/a.b=c', "--config.seed=3"),
        *('--config.init["from"]', '--config.finetune.stages["1_flan"].rows=4'),
    ]
