"""The colours of series on the page and in figures, distinct for red-green colour blindness too.

A search maximised the smallest distance in OKLab between any two of them, for normal, protanopic and
deuteranopic vision (Machado et al., 2009). The colours are near hues with simple names and have a contrast
of 3 to the paper. If there are more series than colours, the colours repeat with other dashes.
"""

LIGHT = ("#4778f0", "#e06e14", "#147f81", "#c33d3e", "#4e9ccd", "#5c3900", "#3d4465", "#1462ab")
DARK = ("#a4ccff", "#ec8719", "#74ffdb", "#ae4fcf", "#ab93fc", "#bdbf9a", "#e4da60", "#52a1a4")
