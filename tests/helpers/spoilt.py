"""Files with a sound checksum whose content is spoilt, as other programs and versions spoil it."""

import copy
import json

import torch

ABSURD = (
    None, True, -1, 0, 3, 10**9, 10**18, -0.5, 1e300, "", "x", "Unheard", [], [1], [-1, 10**9], {},
    {"class": "SharedMLP", "arguments": {"inputs": 30000, "k": 2, "width": 30000}},
    {"class": "L2BatchNorm", "arguments": {"k": 10**10}},
    {"class": "RBF", "arguments": {"lengthscale": {"shape": [30000, 30000], "dtype": "float64"}}},
    {"shape": [30000, 30000], "dtype": "float32"}, {"passed": "network"}, {"passed": "unheard"},
)  # fmt: skip


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
