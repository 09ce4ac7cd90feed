"""The published image sets, the corruptions of CIFAR-10-C, and synthetic stand-ins."""

from paper.data.corruptions import corrupt, read_frost, write_corrupted
from paper.data.gratings import gratings
from paper.data.images import read_corrupted, read_images
from paper.data.sets import CORRUPTIONS

__all__ = [
    "CORRUPTIONS",
    "corrupt",
    "gratings",
    "read_corrupted",
    "read_frost",
    "read_images",
    "write_corrupted",
]
