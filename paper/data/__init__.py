"""The published image sets, the corruptions of CIFAR-10-C, and synthetic stand-ins."""

from paper.data.corruptions import corrupt, read_frost, write_corrupted
from paper.data.gratings import gratings
from paper.data.images import read_corrupted, read_images
from paper.data.sets import CORRUPTIONS
from paper.data.stand_ins import must_stand_in, stand_ins

__all__ = [
    "CORRUPTIONS",
    "corrupt",
    "gratings",
    "must_stand_in",
    "read_corrupted",
    "read_frost",
    "read_images",
    "stand_ins",
    "write_corrupted",
]
