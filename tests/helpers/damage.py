"""Damaged files, made of sound ones: as discs, networks and editors damage them, or on purpose."""

import re

ABSURD = [0, 1, 2**7, 2**15, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1, 10**9, 10**30]


def flipped(data, other, random):
    """A few bits."""
    found = bytearray(data)
    for _ in range(random.integers(1, 9)):
        found[random.integers(len(found))] ^= 1 << random.integers(8)
    return bytes(found)


def cut(data, other, random):
    return data[: random.integers(len(data))]


def overwritten(data, other, random):
    """A span of zeros, of noise or of letters that mean something."""
    start, length = random.integers(len(data)), int(random.integers(1, 64))
    filling = [
        bytes(length), random.bytes(length), b"9" * length, b"[" * length, b"(" * 9 * length,
        b"\n" * length, b"'\"" * length, b"\xff" * length,
    ]  # fmt: skip
    return data[:start] + filling[random.integers(len(filling))] + data[start + length :]


def spliced(data, other, random):
    """The beginning of one and the end of another."""
    return data[: random.integers(len(data))] + other[random.integers(len(other)) :]


def appended(data, other, random):
    return data + [b"\0", b"\n", random.bytes(40), data, other][random.integers(5)]


def absurd_number(data, other, random):
    """A number in letters, replaced by one that is out of place."""
    numbers = [*re.finditer(rb"\d+", data)] or [re.search(b"", data)]
    start, end = numbers[random.integers(len(numbers))].span()
    number = ABSURD[random.integers(len(ABSURD))] * int(random.choice([-1, 1]))
    return data[:start] + str(number).encode() + data[end:]


def absurd_field(data, other, random):
    """A field of two, four or eight bytes, replaced by one that is out of place."""
    size = int(random.choice([2, 4, 8]))
    start = random.integers(max(1, len(data) - size))
    number = ABSURD[random.integers(len(ABSURD))] % 256**size
    return data[:start] + number.to_bytes(size, "little") + data[start + size :]


def doubled(data, other, random):
    """A piece of the file, once more."""
    start, end = sorted(random.integers(len(data), size=2))
    return data[:end] + data[start:]


KINDS = [flipped, cut, overwritten, spliced, appended, absurd_number, absurd_field, doubled]


def damaged(files, seed, random):
    """One of the files, damaged in the kind of manner that the seed says."""
    first, other = random.choice(len(files), size=2)
    return KINDS[seed % len(KINDS)](files[first], files[other], random)
