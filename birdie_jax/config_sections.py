"""The fields of a configuration: meanings, types and defaults.

A mixer's fields are in the mixer's own file, as a `MixerConfig`. The bandit's fields are in
bandit_config.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from birdie_jax.bandit_config import BanditConfig
from birdie_jax.config_types import (
    BatchesOfArm,
    CheckpointsKept,
    ClipNormOrNone,
    CorpusWeight,
    Decay,
    Depth,
    DeviationsOrNone,
    DropoutRate,
    Epsilon,
    Gibibytes,
    HeadOutputs,
    LearningRate,
    Lookahead,
    LoraAlpha,
    LoraRank,
    LossWeight,
    MaxEpochs,
    MeshSize,
    MeshSizeOrAutomatic,
    Name,
    NormOffset,
    Parts,
    PeakLearningRate,
    Prefetch,
    PrunedShare,
    RequiredName,
    RowLength,
    Rows,
    ScaleOrDerived,
    Seconds,
    Seed,
    Share,
    ShareOfBoth,
    SoftCapOrNone,
    Spacing,
    Steps,
    StepsOrNone,
    Temperature,
    Text,
    TokenIdOrNone,
    VocabularySize,
    WeightDecay,
    Width,
    Workers,
)
from birdie_jax.storage import FILE_KEY

Require = Callable[[bool, str, str], None]
"""(condition, field, allowed) -> raises an error that names the field, unless the condition holds."""


@dataclass(frozen=True)
class CorpusConfig:
    """A text in `data.corpora`, of several that a run reads together.

    Attributes:
        source: see `data.source`.
        prepared: directory written by prepare_data; empty = prepare `source`.
        weight: the share of the corpus in the positions of the arms that read it, before normalisation.
        max_epochs: the maximum number of passes over its text; 0 = as many as needed.
    """

    source: Text = ""
    prepared: Text = ""
    weight: CorpusWeight = 1.0
    max_epochs: MaxEpochs = 0.0


@dataclass(frozen=True)
class DataConfig:
    """The source of text, and its preparation as token shards.

    Attributes:
        source: "stdlib" (the Python standard library), a file, a folder or a glob of documents. This field
            and the next three may be URLs, gs://... or s3://...; this field may also be hf://datasets/...
        prepared: directory written by prepare_data; empty = prepare `source` into `cache_dir`.
        corpora: several texts instead of `source` and `prepared`, name -> {source or prepared, weight,
            max_epochs}, see `CorpusConfig`. All use one tokenizer: `tokenizer`, or the tokenizer of the
            prepared ones, or a new one, trained on a sample of all by their weights.
        cache_dir: folder for prepared sources; empty = ~/.cache/birdie_jax/data.
        mirror_gib: GiB of this machine's cache folder for copies of a bucket's shards. Text that does not
            fit is read from the bucket record by record; gs:// supports this, s3:// does not.
        tokenizer: a SentencePiece .model or tokenizer.json; empty = train one on a sample of the source.
        vocab_size: pieces of a new tokenizer.
        text_field: the field of .jsonl, .parquet and .json records with the text; a.b = the field b of a.
        record_tokens: the maximum number of tokens in a record; longer documents are split.
        validation_fraction: the share of held-out documents.
        document_separator: text between two documents of a file; empty = each file is one document.
        document_filter: the condition on a record's fields to keep it as a document, as in "language == en
            and len(text) >= 200"; empty = all. See docs/prepare_text.md.
        deduplicate: whether to drop documents with the same text as an earlier document.
    """

    source: Text = "stdlib"
    prepared: Text = ""
    corpora: dict[str, Any] = field(default_factory=dict)
    cache_dir: Text = ""
    mirror_gib: Gibibytes = 64
    tokenizer: Text = ""
    vocab_size: VocabularySize = 32_000
    text_field: RequiredName = "text"
    record_tokens: RowLength = 32_768
    validation_fraction: ShareOfBoth = 0.01
    document_separator: Text = ""
    document_filter: Text = ""
    deduplicate: bool = False


@dataclass(frozen=True)
class ObjectivesConfig:
    """The arms that training draws from.

    Attributes:
        mixture: a preset of `birdie_jax.objectives.MIXTURES`; read only if `arms` is empty.
        arms: a user's own arms, name -> {objective, group, weight, **parameters}.
        shares_of: the unit of the weights of arms and of the bandit's mixtures: examples (as in the papers)
            or target_tokens, over which the loss is a mean; see docs/mixtures.md.
    """

    mixture: Name = "birdie"
    arms: dict[str, Any] = field(default_factory=dict)
    shares_of: Name = "examples"


@dataclass(frozen=True)
class BatchingConfig:
    """The shape of the global batch, and the processes that make it.

    Attributes:
        rows: the number of packed rows in the global batch.
        length: tokens of a row.
        spacing: padding tokens between two samples of a row.
        lookahead: the number of examples that a row stream may hold back to fill rows better.
        workers: the number of processes that make batches; 0 = a thread of this process.
        prefetch: the number of batches made ahead of the train step.
    """

    rows: Rows = 512
    length: RowLength = 2048
    spacing: Spacing = 3
    lookahead: Lookahead = 12
    workers: Workers = 0
    prefetch: Prefetch = 4


@dataclass(frozen=True)
class MixerConfig:
    """The section of `config.model` for one sequence mixer.

    A mixer subclasses it with its own fields, and defines their checks, the axes that a mesh may divide,
    and the cost of the mixer.

    Attributes:
        section: the name of the section.
        free_fields: the fields that fine-tuning may change from its source run: they change the result only
            by rounding, or follow from the shapes of the parameters.
    """

    section: ClassVar[str]
    free_fields: ClassVar[frozenset[str]] = frozenset()

    def layer_models(self) -> tuple[str, ...]:
        """Return the models whose blocks the layers use, in turn; empty = blocks of this model."""
        return ()

    @property
    def has_attention(self) -> bool:
        """Whether the mixer's cache has tokens instead of a recurrent state."""
        return False

    @property
    def has_linear_scan(self) -> bool:
        """Whether the recurrence is `pallas_kernels.linear_scan`, with one number of state per channel."""
        return False

    @property
    def influence_problem(self) -> tuple[str, str] | None:
        """The reason that the mixer cannot score tokens' influence for pruning, and the models that can.

        Both are parts of a message: "found model 'transformer', <reason>; allowed: <models>".
        """
        if self.has_attention:
            return "which has attention, whose cache holds tokens", "a model without attention"
        return None

    def check_fields(self, require: Require) -> None:
        """Check each field by itself, for every configured model.

        Args:
            require: called with a condition, the path of a field below `config`, and the allowed values.
        """

    def check_model(self, config: "Config", require: Require) -> None:
        """Check the other fields that a model with this mixer needs, only for such a model.

        Args:
            config: the whole configuration; all fields have passed their own checks.
            require: called with a condition, the path of a field below `config`, and the allowed values.
        """

    def check_platform(self, model: "ModelConfig", platform: str, require: Require) -> None:
        """Check that the fields compile for devices of a platform.

        Runs only for a model with this mixer, before compilation.

        Args:
            model: the architecture.
            platform: "cpu", "gpu" or "tpu"; the devices need not be attached.
            require: called with a condition, the path of a field below `config`, and the allowed values.
        """

    def mesh_problem(self, model: "ModelConfig", length: int, axis: str, size: int) -> str | None:
        """Return why the mixer cannot be divided over a mesh axis, or None if it can.

        By default a mixer is divided only by rows and features.

        Args:
            model: the architecture.
            length: tokens of a row.
            axis: a mesh axis: "data", "fsdp", "tensor" or "sequence".
            size: the number of devices along the axis.
        """
        if size == 1 or axis in ("data", "fsdp"):
            return None
        return f"{model.name} is not divided over {axis}"

    def extra_flops_per_token(self, model: "ModelConfig", length: int) -> float:
        """Return the FLOPs per token of a train step, in addition to 6 per parameter of the mixer.

        Args:
            model: the architecture.
            length: tokens of a row.
        """
        return 0.0

    def computation(self, model: "ModelConfig") -> dict[str, Any]:
        """Return the fields that define the mixer's computation, by their paths below `config.model`.

        If a field's default refers to a value of the model, the result has that value.

        Args:
            model: the architecture.
        """
        names = [field.name for field in fields(self) if field.name not in self.free_fields]
        return {f"{self.section}.{name}": getattr(self, name) for name in names}


Section = TypeVar("Section", bound=MixerConfig)


@dataclass(frozen=True)
class ModelConfig:
    """The architecture: the fields of all models.

    Each registered mixer also has its own section, `config.model.<section>`.

    Attributes:
        name: the name of a registered model (`birdie_jax.models`): gated_ssm (fused mixer and MLP),
            gated_ssm_mlp (separate MLP), gated_ssm_plus (MLP and short convolution), hawk, hawk_mlp
            (separate MLP), griffin (layers of hawk_mlp and transformer, ordered by `griffin.pattern`),
            birdie_ssm (the early draft's), mamba, mamba2, gated_deltanet, transformer; and the
            bidirectional encoders, for masked language modelling: bigs, stack_ssm, gated_attention,
            stack_attention.
        layers: the number of blocks.
        features: the width D of the residual stream.
        state: the number of recurrent channels N of a block; in mamba and mamba2 of inner channels E, in
            gated_deltanet of the channels of all values. Half of them run in reverse if `bidirectional`.
        mlp_features: the inner width of the MLP; in bigs and gated_attention the width of the gate, 3 D in
            the paper.
        bidirectional: whether the model reads the context in both directions.
        tie_embeddings: whether the output head is the embedding table.
        dtype: the type of activations and matrix products. Parameters are always float32.
        scan_dtype: the type of the recurrence in memory. bfloat16 has no value between 0.996 and 1, so slow
            decays need float32. mamba ignores it and uses float32; mamba2 and gated_deltanet read the
            operands of their products in `dtype`, and everything else is float32.
        scan_implementation: the implementation of `pallas_kernels.gated_scan`, in mamba, mamba2 and
            gated_deltanet of `selective_scan`, `ssd` and `gated_delta_rule`; empty = on an accelerator the
            fastest correct one, which `train` chooses (docs/check_device.md); elsewhere the platform's own,
            on a GPU XLA's.
        remat: the arrays that a block keeps for the gradient; it recomputes the rest: none (keeps
            everything), recurrences (recurrences and matrix products), dots (matrix products), mixer
            (matrix products of mixers), full (only the block's input), offload (like full, in the host's
            memory), or auto: the first except none with a train step that fits a device; on a CPU none.
        norm_epsilon: the number added to the mean square in RMSNorm, and to the variance in the LayerNorm
            of encoders.
        norm_offset: the number added to the learned scale of RMSNorm, which starts at 1 minus this number;
            with 1, as in RecurrentGemma, a scale of 0 changes nothing.
        mlp_bias: whether the maps of the gated MLP have a bias.
        mlp_activation: the activation of the MLP's gate: gelu (GEGLU) or silu (SwiGLU, as in Llama).
        embedding_scale: the factor of token embeddings at the start of the residual stream; 0 = the square
            root of `features`.
        residual_dtype: the type of the residual stream; empty = `dtype`.
        start_token: whether a start token separates the context and the target of a prompt. Without it, as
            in models of other programs, the whole prompt is text and context.
        begin_token: the id of the token that a model without a start token reads before every text; 0 =
            none.
        end_token: the id of the token that ends a text of such a model. Without a `begin_token`, the model
            also reads it before a text that is scored from its first token; 0 = none.
        min_predicted_id: the smallest id with a probability; losses and answers exclude smaller ids. More
            than 0 in models of other programs, which have no special tokens.
        max_predicted_id: the largest id with a probability; 0 = the last row of the table.
        logit_soft_cap: the bound c of the scores of a language model, c tanh(score / c); 0 = none.
        dropout: the share of each mixer's and MLP's outputs that training sets to zero.
        head: the head of fine-tuning: classification, regression, choice or spans; empty = none in
            pre-training, and in fine-tuning the head that the tasks of the stages need.
        head_name: the saved name of the head's last map; empty = the task's.
        head_outputs: the number of classes or choices; 0 = the task's.
        head_dropout: the share of the inputs of the head's last map that training sets to zero.
        sections: the mixers' sections with values other than the defaults; see `section`.
        free_fields: see `MixerConfig`: precision, memory and training, the format of prompts, which
            fine-tuning teaches, and fields that follow from the shapes of the parameters.
    """

    free_fields: ClassVar[frozenset[str]] = frozenset(
        {
            *("layers", "features", "state", "mlp_features", "tie_embeddings", "mlp_bias"),
            *("dtype", "scan_dtype", "scan_implementation", "residual_dtype", "remat"),
            *("start_token", "begin_token", "end_token", "min_predicted_id", "max_predicted_id"),
            *("dropout", "head", "head_name", "head_outputs", "head_dropout"),
            "sections",
        }
    )

    name: Name = "gated_ssm_plus"
    layers: Depth = 24
    features: Width = 2048
    state: Width = 2560
    mlp_features: Width = 4864
    bidirectional: bool = True
    tie_embeddings: bool = True
    dtype: Name = "bfloat16"
    scan_dtype: Name = "float32"
    scan_implementation: Name = ""
    remat: Name = "full"
    norm_epsilon: Epsilon = 1e-6
    norm_offset: NormOffset = 0.0
    mlp_bias: bool = False
    mlp_activation: Name = "gelu"
    embedding_scale: ScaleOrDerived = 0.0
    residual_dtype: Name = ""
    start_token: bool = True
    begin_token: TokenIdOrNone = 0
    end_token: TokenIdOrNone = 0
    min_predicted_id: TokenIdOrNone = 0
    max_predicted_id: TokenIdOrNone = 0
    logit_soft_cap: SoftCapOrNone = 0.0
    dropout: DropoutRate = 0.0
    head: Name = ""
    head_name: Name = ""
    head_outputs: HeadOutputs = 0
    head_dropout: DropoutRate = 0.1
    sections: tuple[MixerConfig, ...] = ()

    def section(self, kind: type[Section]) -> Section:
        """Return a mixer's own section, from `sections` or else its defaults."""
        for found in self.sections:
            if type(found) is kind:
                return found
        return kind()


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer: AdamW with Mamba's schedule (linear warm-up, then cosine) by default.

    Attributes:
        name: adamw; muon, which orthogonalizes the steps of hidden matrices and uses AdamW for the rest;
            adafactor, which has a small state; or an optimizer that an import registers.
        learning_rate: the peak of the learning rate.
        final_learning_rate: the learning rate that the fall reaches after the last step.
        warmup_steps: the number of steps from 0 to the peak; in a shorter run, all but the last, and a
            warning.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the root of the second moment.
        momentum: the decay of muon's first moment of hidden matrices. `beta1`, `beta2` and `epsilon` are
            AdamW's; adafactor ignores all four.
        weight_decay: the decay of matrices; norms and other vectors have no decay.
        clip_norm: the maximum global gradient norm; 0 = no clipping.
        schedule: the fall of the rate from the peak to the last step: cosine, linear, or wsd, which stays
            at the peak until the last `decay_steps`. With wsd, `train.num_steps`, `decay_steps` and
            `decay_shape` may change when a run resumes before its decay begins.
        decay_steps: the number of steps in which the rate of wsd falls; 0 = it does not fall.
        decay_shape: how far the rate of wsd has fallen after a share p of these steps: one_minus_sqrt (the
            root of p), linear or cosine.
    """

    name: Name = "adamw"
    learning_rate: PeakLearningRate = 1e-3
    final_learning_rate: LearningRate = 1e-5
    warmup_steps: StepsOrNone = 640
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    epsilon: Epsilon = 1e-8
    momentum: Decay = 0.95
    weight_decay: WeightDecay = 0.1
    clip_norm: ClipNormOrNone = 1.0
    schedule: Name = "cosine"
    decay_steps: StepsOrNone = 0
    decay_shape: Name = "one_minus_sqrt"


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; -1, for at most one axis, = all remaining devices.

    Attributes:
        data: rows of the batch. Slices joined by a data-centre network are the outermost parts of this
            axis.
        fsdp: rows of the batch, and the features axis of parameters and optimizer. 0 = automatic: if `data`
            is -1, the smallest power of two for which parameters, gradients and optimizer take at most half
            of a device's memory (1 on CPUs); 1 if `data` is a number.
        tensor: recurrent channels, the inner width of MLPs, heads and the vocabulary. An even number or 1
            in a bidirectional recurrent model.
        sequence: positions of a row; 1 for a model with attention.
    """

    data: MeshSize = -1
    fsdp: MeshSizeOrAutomatic = 0
    tensor: MeshSize = 1
    sequence: MeshSize = 1


@dataclass(frozen=True)
class TrainConfig:
    """The train loop.

    Attributes:
        num_steps: the number of train steps of the whole run; in fine-tuning at most the steps of its
            stages, and 0 = all of them.
        log_every_steps: steps between two lines of metrics.jsonl.
        accumulation_steps: the number of parts of a batch, to save memory; the result is the same. 0 =
            automatic: the fewest parts for which a device computes at most 1,024 tokens at a time per GiB
            of its memory, and keeps their residual stream of all layers in an eighth of its memory.
        loss_chunk: the number of sequence positions with logits in memory at a time.
        hooks: names of further hooks, separated by commas, such as parameter_average.
        layer_norms_every_steps: steps between two lines of metrics with the norms of gradient and update of
            each layer, in pre-training; a multiple of `log_every_steps`; 0 = never.
        gate_statistics_every_steps: steps between two measurements, in pre-training, of saturated gates and
            of the state, by layer, on held-out rows; 0 = none.
        profile: steps to trace for xprof, first:last, as in "20:22".
        average_decay: the decay of earlier parameters' weight at each addition, in parameter_average.
        average_every_steps: steps between two additions, in parameter_average.
        trackers: names of trackers, separated by commas: wandb (Weights & Biases), mlflow, or a tracker
            that an import registers. The first process sends them the metrics.
        lost_seconds: the time after which a process that does not answer counts as lost, and the other
            processes stop.
        hung_seconds: the time after which a process counts as hung if its loop makes no progress; the other
            processes stop.
        bad_steps: the maximum number of bad steps in a row, which the run skips; one more ends the run. A
            step is bad if its loss or gradient norm is not finite, or an outlier. It changes neither
            parameters nor optimizer.
        outlier_deviations: a step is an outlier if its loss or gradient norm is more than this number of
            standard deviations above the mean of the last 128 finite ones, once there are 64. The deviation
            counts as at least 1 % of the mean. 0 = no step is an outlier.
        skip_batches: steps that change nothing: first:last, separated by commas, as in
            "4000:4020,7100:7100"; both ends are skipped.
    """

    num_steps: StepsOrNone = 32_000
    log_every_steps: Steps = 10
    accumulation_steps: Parts = 1
    loss_chunk: RowLength = 256
    hooks: Text = ""
    layer_norms_every_steps: StepsOrNone = 0
    gate_statistics_every_steps: StepsOrNone = 0
    profile: Text = ""
    average_decay: Decay = 0.99
    average_every_steps: Steps = 10
    trackers: Text = ""
    lost_seconds: Seconds = 30
    hung_seconds: Seconds = 600
    bad_steps: StepsOrNone = 10
    outlier_deviations: DeviationsOrNone = 0.0
    skip_batches: Text = ""


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints.

    Attributes:
        every_steps: steps between two checkpoints.
        keep: the number of newest checkpoints to keep; at least 2, so one remains if the other is damaged.
        keep_every_steps: checkpoints at multiples of this step are also kept; 0 = none.
    """

    every_steps: Steps = 500
    keep: CheckpointsKept = 3
    keep_every_steps: StepsOrNone = 0


@dataclass(frozen=True)
class EvalConfig:
    """Validation at every decision of the bandit and at the end, and tasks that measure the run.

    Attributes:
        batches_per_arm: the number of fixed validation batches of each arm.
        rows: the number of rows in a validation batch.
        tasks: tasks to measure during training, name -> {task, **settings}; see docs/evaluate.md.
        tasks_every_steps: steps between two measurements of the tasks; 0 = only at the end.
        stop_when: a condition on a task's metric, as in "book/exact_match >= 0.8"; the run ends at the
            first measurement that meets it; empty = after `train.num_steps`.
        task_rows: the maximum number of a task's questions that a process answers at a time.
    """

    batches_per_arm: BatchesOfArm = 2
    rows: Rows = 16
    tasks: dict[str, Any] = field(default_factory=dict)
    tasks_every_steps: StepsOrNone = 0
    stop_when: Text = ""
    task_rows: Rows = 32


@dataclass(frozen=True)
class InitConfig:
    """The source of a new run's parameters.

    Attributes:
        from_: `init.from`: the workdir of another run, one of its checkpoints (`<workdir>@<step>`, or its
            folder `<workdir>/checkpoints/<step>`), or an exported folder. Parameters are matched by name;
            empty = all parameters start at random. In a configuration file, write `config.init["from"] =
            "runs/other"`, because `from` is a keyword.
        optimizer: also continue with the optimizer, the data position and the bandit of the checkpoint: a
            branch of a pre-training run, which continues its count of steps.
    """

    # `from` is a Python keyword.
    from_: Text = field(default="", metadata={FILE_KEY: "from"})
    optimizer: bool = False


@dataclass(frozen=True)
class FinetunePruningConfig:
    """Fine-tuning for pruned prompts (Simba, appendix A.3): a second loss, from a pass that drops tokens.

    Each sample draws its dropped share at each step, uniformly from 0 to `max_pruned`. See
    `birdie_jax.pruning.PruningSettings` for the other fields.

    Attributes:
        max_pruned: the maximum share of a sample's tokens to drop; 0 = no second loss.
        policy: the name of the rule that chooses the tokens to keep.
        schedule: the name of the schedule, linear or constant.
        norm: the norm that makes a score of channels: absolute, signed or l2.
        readout: gated or state.
        directions: forward or both.
        keep_first: whether the first token of a sample always stays; the last token always does.
    """

    max_pruned: PrunedShare = 0.0
    policy: Name = "influence"
    schedule: Name = "linear"
    norm: Name = "absolute"
    readout: Name = "gated"
    directions: Name = "forward"
    keep_first: bool = False


@dataclass(frozen=True)
class FinetuneLoraConfig:
    """Low-rank adaptation: hidden maps change by products of two narrow matrices; heads train fully.

    Attributes:
        rank: the rank of the products; 0 = train all parameters.
        alpha: the scale; the products are multiplied by alpha / rank.
        maps: patterns of the names of the maps, separated by commas, as in "*/mixer/*"; * matches any text.
    """

    rank: LoraRank = 0
    alpha: LoraAlpha = 16.0
    maps: RequiredName = "*"


@dataclass(frozen=True)
class FinetuneTeacherConfig:
    """Distillation (Hinton et al. 2015): a second, frozen model reads the same rows.

    Attributes:
        from_: `finetune.teacher.from`: a checkpoint of a run (`<workdir>@<step>`) or an exported folder,
            with this run's tokenizer; empty = no teacher.
        logits: the share of the divergence from the teacher's distribution in the loss; the rest is the
            cross-entropy of the labels.
        temperature: the divisor of both models' scores, which softens the distributions; the divergence is
            multiplied by its square.
        hidden: the weight of a further loss, on the relations between the last hidden states of a sample's
            tokens; 0 = none.
    """

    from_: Text = field(default="", metadata={FILE_KEY: "from"})
    logits: Share = 0.5
    temperature: Temperature = 1.0
    hidden: LossWeight = 0.0


@dataclass(frozen=True)
class FinetuneConfig:
    """Fine-tuning on the examples of tasks, one stage after another.

    Attributes:
        stages: name -> {task, its settings, length, rows, epochs, steps, skip_long, pack}, as
            birdie_jax/finetuning/stages.py documents them; they run in the sorted order of their names.
            Empty = pre-training.
        pruning: the second loss, from a pass that drops tokens from layer to layer.
        lora: low-rank adaptation instead of training all parameters.
        teacher: a second model; the run learns its scores or hidden states in addition to the labels.
    """

    stages: dict[str, Any] = field(default_factory=dict)
    pruning: FinetunePruningConfig = field(default_factory=FinetunePruningConfig)
    lora: FinetuneLoraConfig = field(default_factory=FinetuneLoraConfig)
    teacher: FinetuneTeacherConfig = field(default_factory=FinetuneTeacherConfig)


@dataclass(frozen=True)
class Config:
    """The configuration of a run.

    Attributes:
        seed: the seed of all random draws.
        imports: modules or .py files that register objectives, tasks, mixers, policies or hooks. The run
            imports them first; config.json records the hash of each after its name.
        data: the text and its preparation.
        objectives: the arms that training draws from.
        batching: the shape and the production of the global batch.
        model: the architecture.
        bandit: the choice of the mixture.
        optimizer: the optimizer and its schedule.
        mesh: the number of devices along each axis.
        train: the train loop.
        checkpoint: the frequency and the number of checkpoints.
        eval: the validation of every arm.
        init: the source of a new run's parameters.
        finetune: the stages of fine-tuning; empty in pre-training.
    """

    seed: Seed = 0
    imports: tuple[RequiredName, ...] = ()
    data: DataConfig = field(default_factory=DataConfig)
    objectives: ObjectivesConfig = field(default_factory=ObjectivesConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    bandit: BanditConfig = field(default_factory=BanditConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    init: InitConfig = field(default_factory=InitConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)

    @property
    def row_length(self) -> int:
        """The length of the longest rows of the run."""
        # `read_stages` refuses an invalid length and names its field.
        lengths = [
            stage["length"]
            for stage in self.finetune.stages.values()
            if isinstance(stage, Mapping) and type(stage.get("length")) is int
        ]
        return max(lengths, default=self.batching.length)
