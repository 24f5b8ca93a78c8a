"""Data sets by name or from files, and batches of them."""

from pocketbayes.data.batches import BatchLoader, DataSet, Scaling, crop_flip, hold_out
from pocketbayes.data.sets import NAMES, data_folder, load

__all__ = ["load", "NAMES", "data_folder", "DataSet", "Scaling", "hold_out", "crop_flip", "BatchLoader"]
