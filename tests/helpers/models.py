"""Models whose Jacobians the tests take, and the dense truth by plain autograd, row by row."""

import torch
from cases import Case, K
from torch import nn
from truth import points

import neuralef as nef
from neuralef.gram import JacobianGram
from neuralef.jacobian import models
from neuralef.jacobian.models import fold_batch_norm
from neuralef.solvers import subspace

OUTPUTS = 2
LENGTH, WORDS = 5, 11  # of token sequences


def shaken(model, seed=0):
    """The model in float64 and eval mode, with batch norms that do something."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.running_mean.normal_(generator=generator)
            layer.running_var.uniform_(0.5, 2, generator=generator)
            if layer.affine:
                nn.init.normal_(layer.weight, generator=generator)
                nn.init.normal_(layer.bias, generator=generator)
    return model.double().eval()


def mlp(outputs=OUTPUTS, width=6, inputs=3):
    """The same weights whenever it is called."""
    torch.manual_seed(0)
    return shaken(nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs)))


def flat_mlp():
    """(n,) instead of (n, 1)."""
    return nn.Sequential(*mlp(1), nn.Flatten(0)).eval()


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.last = nn.Linear(3, OUTPUTS)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def conv():
    return fold_batch_norm(
        shaken(
            nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(),
                nn.Conv2d(4, 3, 3, stride=2, bias=False), nn.BatchNorm2d(3), nn.Tanh(),
                nn.Flatten(), nn.Linear(12, OUTPUTS),
            )
        )
    )  # fmt: skip


class Reader(nn.Module):
    """A small transformer on token ids, or on a dict of ids and a mask; `shape` of the output."""

    def __init__(self, *shape, dtype=torch.float64):
        super().__init__()
        self.shape = shape or (OUTPUTS,)
        self.words = nn.Embedding(WORDS, 8, dtype=dtype)
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, dtype=dtype
        )
        self.head = nn.Linear(8, torch.Size(self.shape).numel(), dtype=dtype)

    def forward(self, batch):
        ids, mask = (batch["ids"], batch["mask"]) if isinstance(batch, dict) else (batch, None)
        hidden = self.layer(self.words(ids), src_key_padding_mask=None if mask is None else ~mask)
        weights = torch.ones_like(ids) if mask is None else mask
        weights = weights[..., None].to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        values = self.head(mean)
        return values if len(self.shape) == 1 else values.unflatten(1, self.shape)


def ids(n, seed=0, length=LENGTH):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, WORDS, (n, length), generator=generator)


def sentences(n, seed=0):
    """Token ids with a mask: sentences of two tokens and more."""
    lengths = torch.arange(n) % (LENGTH - 1) + 2
    return {"ids": ids(n, seed), "mask": torch.arange(LENGTH) < lengths[:, None]}


def images(n, channels=2, side=6, seed=0):
    return points(n, channels * side * side, seed=seed).reshape(n, channels, side, side)


def both(n=12, seed=0):
    """Vectors, and a number for each."""
    return {"x": points(n, 2, seed), "weight": torch.linspace(1, 2, n, dtype=torch.float64)}


# make() gives the model, twin(n, seed) points for it.
MODELS = [
    Case("MLP", mlp, lambda n, seed=0: points(n, 3, seed)),
    Case("MLP of one output", lambda: mlp(1), lambda n, seed=0: points(n, 3, seed)),
    Case("MLP (n,)", flat_mlp, lambda n, seed=0: points(n, 3, seed)),
    Case("tied", lambda: Tied().double().eval(), lambda n, seed=0: points(n, 3, seed)),
    Case("conv folded", conv, lambda n, seed=0: images(n, seed=seed)),
    Case("ResNet folded",
         lambda: fold_batch_norm(shaken(nef.networks.ResNet(8, 4, outputs=OUTPUTS, seed=0))),
         lambda n, seed=0: images(n, 3, 8, seed)),
    Case("token ids", lambda: Reader().eval(), ids),
    Case("dict", lambda: Reader().eval(), sentences),
]  # fmt: skip
TEXTS = [MODELS[6], MODELS[7]]


def some(x, index):
    """Some of the points, be they a tensor or a dict."""
    return {key: value[index] for key, value in x.items()} if isinstance(x, dict) else x[index]


def count(x):
    return len(next(iter(x.values()))) if isinstance(x, dict) else len(x)


def dense_jacobian(model, x, of=None):
    """J (n·c, p): one backward pass of plain autograd for each output of each point alone.

    Of a function, in the parameters `of` a model.
    """
    parameters = [value for value in (of or model).parameters() if value.requires_grad]
    rows = []
    for i in range(count(x)):
        for value in model(some(x, slice(i, i + 1))).reshape(-1):
            gradients = torch.autograd.grad(
                value, parameters, retain_graph=True, materialize_grads=True
            )
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows).double()


def held_at_once(monkeypatch, numbers):
    """So many numbers of a Jacobian, by whichever method it is made."""
    for chunk in (models.JACOBIAN_CHUNK, models.LAYERWISE_CHUNK):
        monkeypatch.setitem(chunk, "cpu", numbers)
    monkeypatch.setattr(models, "MOST", numbers)


def whole_up_to(monkeypatch, side):
    """`Subspace` iterates on every problem with larger sides than that."""
    monkeypatch.setattr(subspace, "DENSE_SIDE", side)
    monkeypatch.setattr(subspace, "DENSE_SHARE", 0)


def record(monkeypatch, owner, name, note):
    """Have every call of a method noted."""
    method, notes = getattr(owner, name), []

    def recording(self, *args):
        out = method(self, *args)
        notes.append(note(out))
        return out

    monkeypatch.setattr(owner, name, recording)
    return notes


def solved(model, x, k=4, **settings):
    """The Gram of the NTK and its exact eigenpairs."""
    gram = JacobianGram(model, x)
    return gram, nef.Subspace(k, **settings).solve(gram)


def network_for(case, k=K + 1):
    """A network of the user's own: for texts a fresh reader, else an MLP."""
    torch.manual_seed(7)
    if case.id in ("token ids", "dict"):
        return Reader(OUTPUTS, k)
    layers = [nn.Flatten(), nn.LazyLinear(16), nn.Tanh(), nn.Linear(16, OUTPUTS * k)]
    network = nn.Sequential(*layers, nn.Unflatten(1, (OUTPUTS, k)))
    network(case.twin(1).float())
    return network.double()
