"""Series are distinct with red-green colour blindness, and contrast with their paper."""

import re

import numpy as np
import pytest

from birdie_jax.reporting.palette import DARK, LIGHT
from tests.docs.pages import REPOSITORY

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
_VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
# Ottosson (2020): linear RGB to cones, and their cube roots to lightness and two hues.
_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
_STYLE = (REPOSITORY / "birdie_jax/reporting/templates/page_style.html").read_text()
_PAPERS = re.findall(r"--panel: (#\w{6})", _STYLE)


def linear(colours):
    values = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] for colour in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(colours):
    return linear(colours) @ np.array([0.2126, 0.7152, 0.0722]) + 0.05


@pytest.mark.parametrize("vision", _VISIONS)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_any_two_colours_differ(colours, vision):
    """Adjacent patches differ visibly from about 2; the lines of a plot are thin and need more."""
    seen = np.clip(linear(colours) @ _VISIONS[vision].T, 0, 1)
    places = np.cbrt(seen @ _CONES.T) @ _OKLAB.T
    distances = 100 * np.linalg.norm(places[:, None] - places[None], axis=-1)
    assert distances[np.triu_indices(len(colours), 1)].min() > 11.9


@pytest.mark.parametrize(("colours", "paper"), list(zip((LIGHT, DARK), _PAPERS, strict=True)))
def test_colours_have_contrast_to_their_paper(colours, paper):
    """WCAG 2.2, 1.4.11 requires a contrast of 3 for graphics."""
    pairs = np.stack([luminance(colours), np.full(len(colours), luminance([paper])[0])])
    assert (pairs.max(axis=0) / pairs.min(axis=0)).min() >= 3
