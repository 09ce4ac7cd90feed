"""Points to try things on: synthetic sets, small augmentations, readers of tables."""

from neuralef.data.datasets import blend, circles, crop_and_flip, two_moons
from neuralef.data.tables import read_table, write_table

__all__ = ["blend", "circles", "crop_and_flip", "read_table", "two_moons", "write_table"]
