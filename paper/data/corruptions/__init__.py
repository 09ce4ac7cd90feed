"""Corrupted images: the nineteen corruptions of CIFAR-10-C, made anew from their constants."""

from paper.data.corruptions.generate import CONSTANTS, corrupt
from paper.data.corruptions.weather import read_frost
from paper.data.corruptions.write import write_corrupted

__all__ = ["CONSTANTS", "corrupt", "read_frost", "write_corrupted"]
