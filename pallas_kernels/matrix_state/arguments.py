"""Argument checks of the public operations."""

from collections.abc import Iterable, Mapping

from jaxtyping import Array, Bool, Shaped

from pallas_kernels.matrix_state.layout import DIRECTIONS, IMPLEMENTATIONS


def check_shapes(
    operation: str, wanted: Iterable[tuple[str, Shaped[Array, "..."] | None, tuple[int, ...]]]
) -> None:
    """Raise ValueError unless each named array has its shape; skip arrays that are None."""
    for name, array, shape in wanted:
        if array is not None and array.shape != shape:
            raise ValueError(f"{operation}: {name} must be {shape}; found {tuple(array.shape)}")


def check_axes(operation: str, arrays: Mapping[str, Array], axes: str) -> None:
    """Raise ValueError unless each array has four nonempty axes."""
    for name, array in arrays.items():
        if array.ndim != 4 or 0 in array.shape:
            raise ValueError(
                f"{operation}: {name} must be {axes}, at least 1 of each axis; found {tuple(array.shape)}"
            )


def check_heads(operation: str, heads: int, groups: int, direction: str) -> None:
    """Raise ValueError unless heads divide evenly into groups, and both into directions."""
    if heads % groups:
        raise ValueError(f"{operation}: found {heads} heads for {groups} groups; allowed: a multiple")
    if direction == "both" and (heads % 2 or (groups > 1 and groups % 2)):
        raise ValueError(
            f'{operation}: found {heads} heads of {groups} groups for direction "both"; '
            "allowed: even numbers, or a single group"
        )


def check_choices(operation: str, direction: str, chunk_size: int, implementation: str | None) -> None:
    """Raise ValueError unless each argument has an allowed value."""
    if direction not in DIRECTIONS:
        raise ValueError(f"{operation}: direction {direction!r} is unknown; allowed: {DIRECTIONS}")
    if chunk_size < 1 or chunk_size & (chunk_size - 1):
        raise ValueError(f"{operation}: found chunk_size {chunk_size}; allowed: powers of two")
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"{operation}: implementation {implementation!r} is unknown; allowed: None, "
            + ", ".join(map(repr, IMPLEMENTATIONS))
        )


def check_resets(
    operation: str,
    resets: tuple[Bool[Array, "batch length"], ...] | None,
    shape: tuple[int, ...],
    direction: str,
) -> None:
    """Raise ValueError unless there is one array of resets, [batch, length], for each direction."""
    count = 2 if direction == "both" else 1
    if resets is not None and [reset.shape for reset in resets] != [shape[:2]] * count:
        raise ValueError(
            f"{operation}: resets must be a tuple of {count} arrays of shape {shape[:2]}; "
            f"found {[tuple(reset.shape) for reset in resets]}"
        )
