"""Draws as the file format defines them: (seed, draw, tensor, element) -> z.  Needs numpy only."""

from pocketbayes.drawing.philox import WhichDraw, WordStream, tensor_number
from pocketbayes.drawing.shapes import Shape, shape_of

__all__ = ["Shape", "WhichDraw", "WordStream", "shape_of", "tensor_number"]
