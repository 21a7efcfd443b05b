"""The colours of series, in the page and in every figure, which differ to red-green weakness too.

They were found by a search for the largest smallest distance, in OKLab, of any two as people with normal,
protanopic and deuteranopic vision see them (Machado et al., 2009), near to hues that are easily named, and
with a contrast of 3 to the paper. More series than colours repeat them with other dashes.
"""

LIGHT = ("#4778f0", "#e06e14", "#147f81", "#c33d3e", "#4e9ccd", "#5c3900", "#3d4465", "#1462ab")
DARK = ("#a4ccff", "#ec8719", "#74ffdb", "#ae4fcf", "#ab93fc", "#bdbf9a", "#e4da60", "#52a1a4")
