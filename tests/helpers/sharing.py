"""Models that share modules or weights, or hold parameters beside layers."""

import torch
from models import LENGTH, WORDS
from torch import nn

PLACES = 4  # of sequences of vectors


def one_module():
    torch.manual_seed(1)
    return nn.Linear(3, 3)


def two_names():
    layer = one_module()
    return nn.Sequential(layer, nn.Tanh(), layer)


class Words(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.words = nn.Embedding(WORDS, 3, **settings)

    def forward(self, x):
        return self.words(x).mean(1).tanh()


class TiedEmbedding(Words):
    """Words are guessed by the weights that embed them."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, WORDS)
        self.last.weight = self.words.weight

    def forward(self, x):
        return self.last(super().forward(x))


class Places(Words):
    """The embeddings of places are made once for all points."""

    def __init__(self):
        super().__init__()
        self.places, self.norm = nn.Embedding(LENGTH, 3), nn.LayerNorm(3)

    def forward(self, x):
        places = torch.arange(x.shape[1])[None]
        return self.norm((self.words(x) * self.places(places)).tanh()).mean(1)


class OfItsOwn(nn.Module):
    """Parameters beside layers: a token in front of all others, and a scale."""

    def __init__(self):
        super().__init__()
        self.token, self.scale = nn.Parameter(torch.randn(1, 1, 3)), nn.Parameter(torch.randn(3))
        self.first, self.norm = nn.Linear(3, 3), nn.GroupNorm(1, PLACES + 1)

    def forward(self, x):
        h = torch.cat([self.token.expand(len(x), -1, -1), self.first(x)], 1)
        return (self.norm(h).tanh() * self.scale).mean(1)


class Attention(nn.Module):
    """A layer that reads the weights of its projection without calling it."""

    def __init__(self, causal=False):
        super().__init__()
        self.attention = nn.MultiheadAttention(3, 3, batch_first=True)
        self.mask = torch.ones(PLACES, PLACES).triu(1).bool() if causal else None

    def forward(self, x):
        return self.attention(x, x.sin(), x, attn_mask=self.mask)[0].tanh().mean(1)


class Unrolled(nn.Module):
    """A cell that is called at each place, by one row a point."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 2)

    def forward(self, x):
        h = c = x.new_zeros(len(x), 2)
        for place in range(x.shape[1]):
            h, c = self.cell(x[:, place], (h, c))
        return h
