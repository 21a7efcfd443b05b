"""The types of a configuration's fields: the bounds of numbers and texts, and their reasons.

The bounds exclude values that cannot work, not unusual ones. birdie_jax/engine/memory_check.py checks
memory separately. Every field of a section has one of these types (tests/test_config.py).
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
# The bound of scores; 0 = none. The loss needs some distance between scores, and float32 must hold the
# largest.
SoftCapOrNone = Annotated[float, Bounds(more_than=0, at_least=1e-2, at_most=1e6, special=(0,))]
# An id of a token; 0, padding, means none.
TokenIdOrNone = Annotated[int, Bounds(at_least=0, at_most=2**24 + 2**8)]
# Sixteen times the largest existing vocabularies, which have a million pieces.
VocabularySize = Annotated[int, Bounds(at_least=1, at_most=2**24)]

# The compiled program unrolls the loop over the taps of a short convolution. The space between two samples
# must cover the convolution's reach.
ConvolutionTaps = Annotated[int, Bounds(at_least=1, at_most=2**10)]
Spacing = Annotated[int, Bounds(at_least=0, at_most=2**16)]

# On devices int32 counts steps and their sums; at a thousand steps per second this lasts three weeks.
MAX_STEPS = 2_000_000_000
Steps = Annotated[int, Bounds(at_least=1, at_most=MAX_STEPS)]
StepsOrNone = Annotated[int, Bounds(at_least=0, at_most=MAX_STEPS)]
# At least 2, so one remains if the other is damaged.
CheckpointsKept = Annotated[int, Bounds(at_least=2, at_most=MAX_STEPS)]

LoraRank = Annotated[int, Bounds(at_least=0, at_most=2**16)]
LoraAlpha = Annotated[float, Bounds(more_than=0, at_least=1e-3, at_most=1e6)]

# A number divided by its square must stay within float32.
Temperature = Annotated[float, Bounds(at_least=0.05, at_most=100)]
LossWeight = Annotated[float, Bounds(at_least=0, at_most=1e6)]

# Only the ratios of weights count. MaxEpochs exceeds any useful number of passes over a text.
CorpusWeight = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=1e6)]
MaxEpochs = Annotated[float, Bounds(at_least=0, at_most=1e6)]

# Counts of processes, or of batches, parts of a batch or examples on the host.
Lookahead = Annotated[int, Bounds(at_least=0, at_most=2**16)]
Prefetch = Annotated[int, Bounds(at_least=1, at_most=2**16)]
Workers = Annotated[int, Bounds(at_least=0, at_most=2**12)]
Parts = Annotated[int, Bounds(at_least=0, at_most=2**20)]
BatchesOfArm = Annotated[int, Bounds(at_least=1, at_most=2**16)]

# A quarter of an exabyte on one machine.
Gibibytes = Annotated[int, Bounds(at_least=0, at_most=2**28)]

# All updates of a decision run between two train steps.
CriticUpdates = Annotated[int, Bounds(at_least=0, at_most=10**6)]
Candidates = Annotated[int, Bounds(at_least=1, at_most=2**20)]
SelectedCandidates = Annotated[int, Bounds(at_least=1, at_most=2**21)]

# Counts of observations, or of draws of a policy's model, at a decision.
Decisions = Annotated[int, Bounds(at_least=1, at_most=2**20)]
PosteriorSamples = Annotated[int, Bounds(at_least=1, at_most=2**16)]

# NumPy and JAX take a seed as an int64.
Seed = Annotated[int, Bounds(at_least=0, at_most=2**63 - 1)]

# More devices than any cluster has; -1 = all remaining devices.
MeshSize = Annotated[int, Bounds(at_least=1, at_most=2**20, special=(-1,))]
MeshSizeOrAutomatic = Annotated[int, Bounds(at_least=1, at_most=2**20, special=(-1, 0))]

# The distributed runtime counts milliseconds in int32, which is 24 days; this is 11.
Seconds = Annotated[int, Bounds(at_least=1, at_most=10**6)]

# A rate of 1 would drop everything.
DropoutRate = Annotated[float, Bounds(at_least=0, less_than=1)]
# The discretisation step dt of a state-space layer: above 100, a mode with real part -1/2 forgets
# everything before the next token.
StepSize = Annotated[float, Bounds(more_than=0, at_least=1e-8, at_most=100)]
# The standard deviation of initial weights: below 1e-6 all are nearly equal, and above 10 nothing trains.
InitialDeviation = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=10)]
# The number of texts that an encoder distinguishes.
TokenTypes = Annotated[int, Bounds(at_least=1, at_most=2**10)]
# Shares and probabilities.
Share = Annotated[float, Bounds(at_least=0, at_most=1)]
ShareOfBoth = Annotated[float, Bounds(more_than=0, less_than=1)]
# The maximum share of a sample's tokens to drop; 1 would drop all of them.
PrunedShare = Annotated[float, Bounds(at_least=0, less_than=1)]
# A number divided by it must stay within float32.
PositiveShare = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=1)]
Decay = Annotated[float, Bounds(at_least=0, less_than=1)]

# Added to avoid a division by zero: float32 distinguishes 1e-30 from zero, even after a few products, and a
# number above 1 would dominate the sum.
_MIN_POSITIVE = 1e-30
Epsilon = Annotated[float, Bounds(more_than=0, at_least=_MIN_POSITIVE, at_most=1)]
# AdamW moves each weight by about the learning rate per step, and weights have size 1 or less.
PeakLearningRate = Annotated[float, Bounds(more_than=0, at_least=_MIN_POSITIVE, at_most=100)]
LearningRate = Annotated[float, Bounds(at_least=0, at_most=100)]
# The standard deviation of rewards, which are within 1.
Deviation = Annotated[float, Bounds(more_than=0, at_least=0.01, at_most=100)]
# The deviations above a mean; 0 = off. Below 4, a lasting rise would be an outlier for ten steps.
DeviationsOrNone = Annotated[float, Bounds(more_than=0, at_least=4, at_most=1e6, special=(0,))]
# The divergence of one mixture from another, in nats.
Divergence = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=100)]
# The optimizer multiplies it by the learning rate: above the inverse of the rate, weights would change
# sign.
WeightDecay = Annotated[float, Bounds(at_least=0, at_most=10**4)]
# A large norm, within float32, disables clipping.
ClipNorm = Annotated[float, Bounds(more_than=0, at_least=_MIN_POSITIVE, at_most=1e30)]
ClipNormOrNone = Annotated[float, Bounds(more_than=0, at_least=_MIN_POSITIVE, at_most=1e30, special=(0,))]
# The frequencies are its powers in float32; models for a million tokens use about 1e7.
RopeBase = Annotated[float, Bounds(more_than=1, at_most=1e15)]

# The share of a head's channels that positions rotate.
RotaryShare = Annotated[float, Bounds(more_than=0, at_least=1e-6, at_most=1)]

# The number of tokens that a token attends to; 0 = all tokens of its sample.
WindowOrNone = Annotated[int, Bounds(at_least=0, at_most=2**24)]

# Names of files, and lists of names; Linux limits paths to 4,096 bytes.
Text = Annotated[str, Line(at_most=4096)]
# A single name.
Name = Annotated[str, Line(at_most=256)]
RequiredName = Annotated[str, Line(at_most=256, not_empty=True)]
