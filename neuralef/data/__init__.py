"""Readers of tables and published image sets; synthetic sets; augmentation; corruptions."""

from neuralef.data.augment import blend, crop_and_flip
from neuralef.data.corruptions import corrupt, read_frost, write_corrupted
from neuralef.data.images import read_corrupted, read_images
from neuralef.data.sets import CORRUPTIONS
from neuralef.data.synthetic import circles, gratings, two_moons
from neuralef.data.tables import read_table, write_table

__all__ = [
    "CORRUPTIONS",
    "blend",
    "circles",
    "corrupt",
    "crop_and_flip",
    "gratings",
    "read_corrupted",
    "read_frost",
    "read_images",
    "read_table",
    "two_moons",
    "write_corrupted",
    "write_table",
]
