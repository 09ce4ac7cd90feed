"""The NN-GP kernel of any architecture, from networks drawn out of its prior."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from neuralef.checks import check_count, check_points, check_positive
from neuralef.kernels.base import Kernel, SampledFeatures
from neuralef.networks.stacked import evaluate_stack, is_plain
from neuralef.networks.tangent import ACTIVATION_CHUNK, largest_activation, plain
from neuralef.points import Points

if TYPE_CHECKING:
    from neuralef.gram import Gram

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Networks that are drawn together. It is part of the random stream: never change it by hand.
DRAWN_AT_ONCE = 64
Weights = dict[str, Tensor]


class NNGP(Kernel):
    """κ(x, x′) = E_θ f(x; θ) f(x′; θ) over networks with random weights, from s draws of them.

    `make_net()` builds a network (n, …) ↦ (n,), (n, 1) or (n, c). Its own random initialisation is
    the prior; or, with `weight_variance` σ_w² and `bias_variance` σ_b², the weights of linear and
    convolutional layers are N(0, σ_w²/fan_in) and their biases N(0, σ_b²), the rest staying as it
    was made. `marginalize` then takes the mean over the last linear layer in closed form, so that
    each of its inputs is a feature: a better estimate of the same kernel from the same networks.
    `gram(x)` is a `FeatureGram` (Lee et al. 2018; Novak et al. 2019).

    >>> net = lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> kernel = NNGP(net, samples=100, weight_variance=2.0, bias_variance=1.0)
    >>> kernel.gram(torch.randn(9, 2)).phi.shape
    torch.Size([9, 100])
    """

    integers = True

    def __init__(
        self,
        make_net: Callable[[], nn.Module],
        samples: int = 2000,
        weight_variance: float | None = None,
        bias_variance: float | None = None,
        marginalize: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.make_net = make_net
        self.samples = check_count(samples, "samples")
        self.seed = check_count(seed, "seed", least=0)
        if (weight_variance is None) != (bias_variance is None):
            raise ValueError("give both weight_variance and bias_variance, or neither")
        if weight_variance is not None:
            check_positive(weight_variance, "weight_variance")
            if not (isinstance(bias_variance, Real) and 0 <= bias_variance < math.inf):
                raise ValueError(f"bias_variance must be at least 0, got {bias_variance!r}")
        self.own_prior = weight_variance is None
        self.weight_variance, self.bias_variance = weight_variance or 0.0, bias_variance or 0.0
        if marginalize and weight_variance is None:
            raise ValueError("marginalize needs the prior's weight_variance and bias_variance")
        self.skeleton, self.marginalize = self._make(), marginalize
        if marginalize:  # what the last layer would see is the output
            self.skeleton.set_submodule(_last_linear(self.skeleton), nn.Identity())
        self._outputs: int | None = None

    def _make(self) -> nn.Module:
        net = self.make_net()
        if not isinstance(net, nn.Module):
            raise TypeError(f"make_net must build a torch module, got {type(net).__name__}")
        return net.eval().requires_grad_(False)

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """The number c of outputs, known once the kernel has seen a point."""
        if self._outputs is None:
            raise ValueError(
                "how many outputs the networks have shows on data: call kernel.features(x) on a "
                "few points first"
            )
        return self._outputs

    def features(self, x: Points) -> Tensor:
        """φ(x), (n, s) or (n, c, s): the outputs of the networks, or their last hidden units."""
        x = check_points(x, integers=True)
        with torch.no_grad():
            values = [self._evaluate(weights, x) for weights in self._draws(x)]
        phi = torch.cat(values, dim=-1)
        if not self.marginalize:
            self._outputs = 1 if phi.ndim == 2 else phi.shape[1]
            return phi
        self._outputs = 1
        s = phi.shape[1] + 1  # κ is the mean over the units plus the variance of the bias
        phi *= math.sqrt(self.weight_variance * s / (s - 1))
        constant = phi.new_full((len(phi), 1), math.sqrt(self.bias_variance * s))
        return torch.cat([phi, constant], dim=1)

    def _draws(self, x: Points) -> Iterator[Weights]:
        """The weights of some networks at a time, stacked, where the points are."""
        dtype = x.dtype if x.dtype.is_floating_point else torch.float32
        for group, start in enumerate(range(0, self.samples, DRAWN_AT_ONCE)):
            count = min(DRAWN_AT_ONCE, self.samples - start)
            seed = (self.seed * 0x9E3779B97F4A7C15 + group) % 2**63
            drawn = self._own(count, seed) if self.own_prior else self._normal(count, seed)
            yield {
                name: value.to(x.device, dtype if value.is_floating_point() else None)
                for name, value in drawn.items()
            }

    def _own(self, count: int, seed: int) -> Weights:
        """Weights as make_net itself draws them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            parameters, buffers = stack_module_state([self._make() for _ in range(count)])
        return {name: value.detach() for name, value in (parameters | buffers).items()}

    def _normal(self, count: int, seed: int) -> Weights:
        """Weights of the given variances, layer by layer."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {
            name: value.expand(count, *value.shape)
            for name, value in self.skeleton.state_dict().items()
        }
        for name, layer in self.skeleton.named_modules():
            if not isinstance(layer, LAYERS):
                continue
            prefix = f"{name}." if name else ""
            fan_in = layer.weight[0].numel()
            scales = {"weight": math.sqrt(self.weight_variance / fan_in)}
            if layer.bias is not None:
                scales["bias"] = math.sqrt(self.bias_variance)
            for part, scale in scales.items():
                shape = (count, *getattr(layer, part).shape)
                drawn[prefix + part] = scale * torch.randn(shape, generator=generator)
        return drawn

    def _evaluate(self, weights: Weights, x: Points) -> Tensor:
        """The outputs of stacked networks at all points: (n, networks), or (n, c, networks)."""
        count = len(next(iter(weights.values())))
        kind = "cuda" if x.device.type == "cuda" else "cpu"
        first = {name: value[0] for name, value in weights.items()}
        largest = largest_activation(self.skeleton, x[:1], first)
        size = max(1, ACTIVATION_CHUNK[kind] // (largest * count))

        values = torch.cat([self._run(weights, part) for part in x.split(size)])
        self._check(values, len(x))
        if self.marginalize:
            return values.flatten(1)
        return values[:, 0] if values.ndim == 3 and values.shape[1] == 1 else values

    def _run(self, weights: Weights, x: Points) -> Tensor:
        if isinstance(self.skeleton, nn.Sequential) and is_plain(self.skeleton):
            return evaluate_stack(self.skeleton, weights, x)

        def one(given: Weights, points: Points) -> Tensor:
            return functional_call(self.skeleton, given, (points,))

        return vmap(one, in_dims=(0, None), out_dims=-1, randomness="error")(weights, plain(x))

    def _check(self, values: Tensor, points: int) -> None:
        if len(values) != points or values.ndim not in (2, 3) or values.ndim + self.marginalize < 3:
            ask = "(n, units) before its last layer" if self.marginalize else "(n,) or (n, c)"
            raise ValueError(
                f"a network of make_net must give {ask}, got {tuple(values.shape[:-1])} on "
                f"{points} points"
            )

    def forward(self, x1: Points, x2: Points) -> Tensor:
        """The block κ(x1, x2), (n1, n2), or (n1·c, n2·c)."""
        first, second = self.features(x1), self.features(x2)
        return first.flatten(0, -2) @ second.flatten(0, -2).T / first.shape[-1]

    def diagonal(self, x: Points) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c)."""
        return self.features(x).square().mean(-1)

    def gram(self, x: Points) -> Gram:
        """A `FeatureGram` of the sampled features."""
        from neuralef.gram import FeatureGram

        x = check_points(x, integers=True)
        return FeatureGram(x, self.features(x), SampledFeatures(self))


def _last_linear(net: nn.Module) -> str:
    names = [name for name, part in net.named_modules() if isinstance(part, nn.Linear)]
    if not names or not names[-1]:
        raise ValueError("marginalize needs a network that ends in an nn.Linear layer")
    return names[-1]
