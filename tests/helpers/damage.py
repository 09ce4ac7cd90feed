"""Damaged files: of bytes as disks and networks damage them, of content as other programs do."""

import copy
import json
import random
import struct

import torch

ABSURD = (
    None, True, -1, 0, 3, 10**9, 10**18, -0.5, 1e300, "", "x", "Unheard", [], [1], [-1, 10**9], {},
    {"class": "SharedMLP", "arguments": {"inputs": 30000, "k": 2, "width": 30000}},
    {"class": "L2BatchNorm", "arguments": {"k": 10**10}},
    {"class": "RBF", "arguments": {"lengthscale": {"shape": [30000, 30000], "dtype": "float64"}}},
    {"shape": [30000, 30000], "dtype": "float32"}, {"passed": "network"}, {"passed": "unheard"},
)  # fmt: skip


def of_bytes(data, chance):
    """The bytes of a file after one mishap."""
    data, size = bytearray(data), len(data)
    start = chance.randrange(size)
    span = slice(start, start + chance.choice([1, 2, 8, 64, 1000]))
    kind = chance.randrange(10)
    if kind <= 2:  # the commonest: one bit
        data[start] ^= 1 << chance.randrange(8)
    elif kind == 3:
        head = chance.randrange(min(size, 2000))  # which is text
        data[head] ^= 1 << chance.randrange(8)
    elif kind == 4:
        del data[start:]
    elif kind == 5:
        data[span] = bytes(len(data[span]))
    elif kind == 6:
        data[span] = chance.randbytes(len(data[span]))
    elif kind == 7:
        del data[span]
    elif kind == 8:
        data[start:start] = chance.choice([b"\0", data[span], chance.randbytes(8), bytes(data)])
    else:
        data = _digits(data, chance)
    return bytes(data)


def _digits(data, chance):
    """A number somewhere in the text becomes another one, absurdly large perhaps."""
    places = [i for i in range(min(len(data), 20_000)) if chr(data[i]).isdigit()]
    if not places:
        return data[:-1]
    place = chance.choice(places)
    data[place : place + 1] = chance.choice([b"0", b"9", b"-", b"99999999999", b"e9", b"."])
    if chance.random() < 0.5 and len(data) > 8:  # as a program that mends the length would
        data[:8] = struct.pack("<Q", max(0, struct.unpack("<Q", data[:8])[0] + chance.randrange(9)))
    return data


def _nodes(content, path=()):
    """Where the values of some JSON are."""
    yield path
    pairs = {dict: lambda: content.items(), list: lambda: enumerate(content)}
    for key, value in pairs.get(type(content), tuple)():
        yield from _nodes(value, (*path, key))


def of_header(header, chance):
    """A header that is JSON and no longer what it was."""
    header = copy.deepcopy(header)
    *above, last = chance.choice([path for path in _nodes(header) if path])
    parent = header
    for key in above:
        parent = parent[key]
    kind = chance.randrange(4)
    if kind == 0:
        del parent[last]
    elif kind == 1 and isinstance(parent, dict):
        parent[f"{last}s"] = parent.pop(last)
    else:
        parent[last] = copy.deepcopy(chance.choice(ABSURD))
    return json.loads(json.dumps(header))


def of_tensors(tensors, chance):
    """Tensors of which one is gone, spoilt, of another kind or in another one's place."""
    tensors = dict(tensors)
    name, other = chance.choice(list(tensors)), chance.choice(list(tensors))
    value = tensors[name]
    kind = chance.randrange(8)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[f"{name}s"] = tensors.pop(name)
    elif kind == 2:
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif kind == 3:
        tensors[name] = value[:0] if value.ndim else value.new_empty(0)
    elif kind == 4:
        tensors[name] = (value.double() * 0 + torch.nan).to(value) if value.ndim else value + 1
    elif kind == 5:
        tensors[name] = -value.double() - 1
    elif kind == 6:
        tensors[name] = value.long()
    else:
        tensors[name] = torch.stack([value, value])
    return tensors


def generator(seed):
    return random.Random(seed)
