"""Draws as the file format defines them: (seed, draw, mode, tensor, element) -> z.  Needs numpy only."""

from pocketbayes.drawing.philox import Stream, tensor_number
from pocketbayes.drawing.shapes import Moments, Shape, shape_of

__all__ = ["Stream", "Moments", "Shape", "shape_of", "tensor_number"]
