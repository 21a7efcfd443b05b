"""The array shapes of the package; tests check the annotations.

Dimensions: `rows` (packed sequences in a batch), `length` (tokens in a row), `features` (width of the
residual stream), `state` (recurrent channels N of the papers), `vocab` (rows of the embedding table),
`arms` (objectives with their parameters), `decisions` (entries of the bandit's history).
"""

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, PRNGKeyArray, UInt32
from jaxtyping import Key as KeyArray

# Arrays on the host or on devices; an array of a single row may lack the axis `rows`.
PackedIds = Int32[np.ndarray | Array, "*rows length"]
PackedMask = Bool[np.ndarray | Array, "*rows length"]
TokenIds = Int[Array, "rows length"]
TokenMask = Bool[Array, "rows length"]
Activations = Float[Array, "rows length features"]
StateSequence = Float[Array, "rows length state"]
# The output of a recurrence, by channels or by heads with several channels each.
RecurrentSequence = Float[Array, "rows length *channels"]
# The state of a recurrence: one number per channel, several in a selective scan, or a matrix per head.
RowState = Float[Array, "rows *numbers state"]
ArmVector = Float[Array, " arms"]
Scalar = Float[Array, ""]
Key = PRNGKeyArray
KeyData = UInt32[Array, "2"]
# One key for each row of a batch or of a part of it; `LayerKeys` also for each layer.
RowKeys = KeyArray[Array, " rows"]
LayerKeys = KeyArray[Array, "layers rows"]

__all__ = [
    "Activations",
    "ArmVector",
    "Key",
    "KeyData",
    "LayerKeys",
    "PackedIds",
    "PackedMask",
    "RecurrentSequence",
    "RowKeys",
    "RowState",
    "Scalar",
    "StateSequence",
    "TokenIds",
    "TokenMask",
]
