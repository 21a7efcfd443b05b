"""The types of a configuration's fields: the bounds of numbers and texts, and their reasons.

The bounds are generous: they exclude values that cannot work, not unusual ones.
birdie_jax/engine/memory_check.py checks the memory of a machine separately. Every field of a section has
one of these types (tests/test_config.py), so the bound is next to the field.
"""

from typing import Annotated

from birdie_jax.storage import Bounds, Line

# The shape of a batch. Its tokens are counted in int32, see MAX_BATCH_TOKENS.
Rows = Annotated[int, Bounds(at_least=1, at_most=2**20)]
RowLength = Annotated[int, Bounds(at_least=1, at_most=2**24)]
MAX_BATCH_TOKENS = 2**31 - 1

# A hundred times the widest and deepest existing models.
Width = Annotated[int, Bounds(at_least=1, at_most=2**20)]
Depth = Annotated[int, Bounds(at_least=1, at_most=2**16)]
Heads = Annotated[int, Bounds(at_least=1, at_most=2**16)]
HeadsOrAsMany = Annotated[int, Bounds(at_least=0, at_most=2**16)]
# The classes or choices of a task; 0 = the task's own.
HeadOutputs = Annotated[int, Bounds(at_least=0, at_most=2**16)]
# 0 = derived from the width.
RankOrDerived = Annotated[int, Bounds(at_least=0, at_most=2**20)]
# The factor of the embedding; 0 = the square root of the width.
ScaleOrDerived = Annotated[float, Bounds(more_than=0, at_least=1e-3, at_most=1e3, special=(0,))]
# Added to the learned scale of a norm.
NormOffset = Annotated[float, Bounds(at_least=0, at_most=1)]
# The bound of scores; 0 = none. The loss needs some distance between scores, and float32 holds the largest.
SoftCapOrNone = Annotated[float, Bounds(more_than=0, at_least=1e-2, at_most=1e6, special=(0,))]
# An id of a token; 0, padding, means none.
TokenIdOrNone = Annotated[int, Bounds(at_least=0, at_most=2**24 + 2**8)]
# Sixteen times the largest vocabularies of tokenizers, which have a million pieces.
VocabularySize = Annotated[int, Bounds(at_least=1, at_most=2**24)]

# The loop over the taps of a short convolution is unrolled in the program. The space between two samples
# must cover the reach of the convolution.
ConvolutionTaps = Annotated[int, Bounds(at_least=1, at_most=2**10)]
Spacing = Annotated[int, Bounds(at_least=0, at_most=2**16)]

# On the devices int32 counts steps and their sums; at a thousand steps a second this lasts three weeks.
MAX_STEPS = 2_000_000_000
Steps = Annotated[int, Bounds(at_least=1, at_most=MAX_STEPS)]
StepsOrNone = Annotated[int, Bounds(at_least=0, at_most=MAX_STEPS)]
# If one is damaged, another must remain.
CheckpointsKept = Annotated[int, Bounds(at_least=2, at_most=MAX_STEPS)]

LoraRank = Annotated[int, Bounds(at_least=0, at_most=2**16)]
LoraAlpha = Annotated[float, Bounds(more_than=0, at_least=1e-3, at_most=1e6)]

# A quotient by its square stays within float32.
Temperature = Annotated[float, Bounds(at_least=0.05, at_most=100)]
LossWeight = Annotated[float, Bounds(at_least=0, at_most=1e6)]

# Only the ratios of weights count. No text is worth reading more often than MaxEpochs.
CorpusWeight = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=1e6)]
MaxEpochs = Annotated[float, Bounds(at_least=0, at_most=1e6)]

# Each of these counts batches, parts of a batch or examples that the host holds, or processes.
Lookahead = Annotated[int, Bounds(at_least=0, at_most=2**16)]
Prefetch = Annotated[int, Bounds(at_least=1, at_most=2**16)]
Workers = Annotated[int, Bounds(at_least=0, at_most=2**12)]
Parts = Annotated[int, Bounds(at_least=0, at_most=2**20)]
BatchesOfArm = Annotated[int, Bounds(at_least=1, at_most=2**16)]

# A quarter of an exabyte on one machine.
Gibibytes = Annotated[int, Bounds(at_least=0, at_most=2**28)]

# All of one decision happens between two train steps.
CriticUpdates = Annotated[int, Bounds(at_least=0, at_most=10**6)]
Candidates = Annotated[int, Bounds(at_least=1, at_most=2**20)]
SelectedCandidates = Annotated[int, Bounds(at_least=1, at_most=2**21)]

# Observations that a reward or a policy uses, and draws of its model at a decision.
Decisions = Annotated[int, Bounds(at_least=1, at_most=2**20)]
PosteriorSamples = Annotated[int, Bounds(at_least=1, at_most=2**16)]

# NumPy and JAX take a seed as an int64.
Seed = Annotated[int, Bounds(at_least=0, at_most=2**63 - 1)]

# More devices than any cluster has; -1 = all remaining devices.
MeshSize = Annotated[int, Bounds(at_least=1, at_most=2**20, special=(-1,))]
MeshSizeOrAutomatic = Annotated[int, Bounds(at_least=1, at_most=2**20, special=(-1, 0))]

# The distributed runtime counts milliseconds in int32, which is 24 days; this is 11.
Seconds = Annotated[int, Bounds(at_least=1, at_most=10**6)]

# At 1 nothing would be left.
DropoutRate = Annotated[float, Bounds(at_least=0, less_than=1)]
# The discretisation step dt of a state-space layer: beyond 100 a mode with the real part -1/2 has forgotten
# everything before the next token.
StepSize = Annotated[float, Bounds(more_than=0, at_least=1e-8, at_most=100)]
# The standard deviation of initial weights: below 1e-6 all are alike, and beyond 10 nothing trains.
InitialDeviation = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=10)]
# The texts that an encoder distinguishes.
TokenTypes = Annotated[int, Bounds(at_least=1, at_most=2**10)]
# Shares and probabilities.
Share = Annotated[float, Bounds(at_least=0, at_most=1)]
ShareOfBoth = Annotated[float, Bounds(more_than=0, less_than=1)]
# The largest share of a sample's tokens that is dropped: at 1 nothing would be left.
PrunedShare = Annotated[float, Bounds(at_least=0, less_than=1)]
# A quotient by it stays within float32.
PositiveShare = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=1)]
Decay = Annotated[float, Bounds(at_least=0, less_than=1)]

# Added to avoid a division by zero: float32 distinguishes 1e-30 from zero, also after a few products, and a
# number beyond 1 would dominate the sum.
_MIN_POSITIVE = 1e-30
Epsilon = Annotated[float, Bounds(more_than=0, at_least=_MIN_POSITIVE, at_most=1)]
# AdamW moves each weight by about the learning rate in a step, and weights are of size 1 or less.
PeakLearningRate = Annotated[float, Bounds(more_than=0, at_least=_MIN_POSITIVE, at_most=100)]
LearningRate = Annotated[float, Bounds(at_least=0, at_most=100)]
# The deviation of rewards, which are within 1.
Deviation = Annotated[float, Bounds(more_than=0, at_least=0.01, at_most=100)]
# Above a mean; 0 = off. With fewer than 4 a lasting rise would be an outlier for ten steps.
DeviationsOrNone = Annotated[float, Bounds(more_than=0, at_least=4, at_most=1e6, special=(0,))]
# The divergence of one mixture from another, in nats.
Divergence = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=100)]
# The optimizer multiplies it by the learning rate: beyond the inverse of the rate, weights would change
# sign.
WeightDecay = Annotated[float, Bounds(at_least=0, at_most=10**4)]
# A large norm, which float32 must hold, switches clipping off.
ClipNorm = Annotated[float, Bounds(more_than=0, at_least=_MIN_POSITIVE, at_most=1e30)]
ClipNormOrNone = Annotated[float, Bounds(more_than=0, at_least=_MIN_POSITIVE, at_most=1e30, special=(0,))]
# The frequencies are its powers in float32; models for a million tokens have 1e7 or so.
RopeBase = Annotated[float, Bounds(more_than=1, at_most=1e15)]

# The share of a head's channels that positions rotate.
RotaryShare = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=1)]

# The tokens that a token attends to; 0 = all tokens of its sample.
WindowOrNone = Annotated[int, Bounds(at_least=0, at_most=2**24)]

# The names of files, whose paths Linux limits to 4,096 bytes, and lists of names.
Text = Annotated[str, Line(at_most=4096)]
# The name of one thing.
Name = Annotated[str, Line(at_most=256)]
RequiredName = Annotated[str, Line(at_most=256, not_empty=True)]
