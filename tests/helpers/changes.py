"""Changes of a module's tensors through `.data`, which leave no trace with torch."""

from contextlib import contextmanager

import torch


def numbers(tensor):
    """As a vector of the same memory."""
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.data.permute(order).view(-1)


def _one(tensor, generator):
    return torch.randint(tensor.numel(), (1,), generator=generator)


def one_sign(tensors, generator):
    flat = numbers(tensors[0])
    flat[_one(flat, generator)] *= -1


def all_signs(tensors, generator):
    tensors[0].data.neg_()


def one_weight(tensors, generator):
    flat = numbers(tensors[0])
    flat[_one(flat, generator)] *= 1 + max(1e-3, 2 * torch.finfo(flat.dtype).eps)


def permutation(tensors, generator):
    flat = numbers(tensors[0])
    flat.copy_(flat[torch.randperm(len(flat), generator=generator)])


def two_rows(tensors, generator):
    rows = torch.atleast_1d(tensors[0].data)
    first, second = torch.randint(len(rows), (2,), generator=generator).tolist()
    rows[[first, second]] = rows[[second, first]]


def two_entries(tensors, generator):
    two_rows([numbers(tensors[0])], generator)


def transposition(tensors, generator):
    values = tensors[0].data
    if values.ndim == 2:
        values.copy_(values.clone().T.reshape(values.shape))


def two_tensors(tensors, generator):
    """The numbers of two of one shape, each of which stays where it is."""
    first, *others = tensors
    other = next((t for t in others if t.shape == first.shape), first)
    kept = first.data.clone()
    first.data.copy_(other.data)
    other.data.copy_(kept)


def tensors_changed_places(tensors, generator):
    first, *others = tensors
    other = next((t for t in others if t.shape == first.shape), first)
    first.data, other.data = other.data, first.data


CHANGES = [
    one_sign, all_signs, one_weight, permutation, two_rows, two_entries, transposition,
    two_tensors, tensors_changed_places,
]  # fmt: skip


@contextmanager
def changed(module, seed):
    """A random change of what is saved, undone afterwards; yields its name, or None without one."""
    generator = torch.Generator().manual_seed(seed)
    change = CHANGES[seed % len(CHANGES)]
    saved = module.state_dict()
    every = [*module.named_parameters(), *module.named_buffers()]
    every = [(name, tensor) for name, tensor in every if name in saved]
    order = torch.randperm(len(every), generator=generator).tolist()
    named = [every[i] for i in order if every[i][1].is_floating_point()]
    tensors = [tensor for _, tensor in named]
    kept = [(tensor, tensor.data, tensor.data.clone()) for tensor in tensors]
    change(tensors, generator)
    differ = any(not torch.equal(tensor.data, values) for tensor, _, values in kept)
    yield f"{change.__name__} of {named[0][0]}" if differ else None
    for tensor, data, values in kept:
        tensor.data = data
        tensor.data.copy_(values)
