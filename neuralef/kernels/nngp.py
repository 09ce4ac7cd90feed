"""The NN-GP kernel of any architecture, from networks drawn out of its prior."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from neuralef.checks import check_count, check_points, check_positive
from neuralef.kernels.base import Kernel, SampledFeatures
from neuralef.networks.stacked import evaluate_stack, is_plain
from neuralef.networks.tangent import (
    ACTIVATION_CHUNK,
    check_model,
    differentiable,
    largest_activation,
    plain,
)
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
    each of its inputs is a feature: a better estimate of the same kernel, that of one output, from
    the same networks.
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
        if not callable(make_net) or isinstance(make_net, nn.Module):
            raise TypeError(
                "make_net must be a function that builds a network, such as lambda: nn.Linear(2, 1)"
            )
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
        self.marginalize = marginalize
        with _seeded(self.seed):  # for what the given variances do not say
            self.net = self._make()
        self._outputs: int | None = None

    def _make(self) -> nn.Module:
        net = self.make_net()
        if not isinstance(net, nn.Module):
            raise TypeError(f"make_net must build a torch module, got {type(net).__name__}")
        if not any(True for _ in net.parameters()):
            raise ValueError(f"{type(net).__name__} has no parameters to draw")
        net = net.eval().requires_grad_(False)
        check_model(net)
        return net

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
        body, last = (self.net, None) if not self.marginalize else self._without_last(x[:1])
        with torch.no_grad():
            phi = torch.cat([self._evaluate(body, w, x) for w in self._draws(x)], dim=-1)
        self._outputs = 1 if phi.ndim == 2 else phi.shape[1]
        if last is None:
            return phi
        s = phi.shape[1] + 1  # κ is the mean over the units plus the variance of the bias
        phi *= math.sqrt(self.weight_variance * s / (s - 1))
        bias = self.bias_variance if last.bias is not None else 0.0
        return torch.cat([phi, phi.new_full((len(phi), 1), math.sqrt(bias * s))], dim=1)

    def _without_last(self, x: Points) -> tuple[nn.Module, nn.Linear]:
        """The network up to the linear layer whose output is its own, and that layer."""
        made: dict[str, Tensor] = {}
        net = copy.deepcopy(self.net)
        layers = {n: part for n, part in net.named_modules() if isinstance(part, nn.Linear)}

        def watch(name: str) -> Callable[..., None]:
            return lambda layer, args, out: made.update({name: out})

        hooks = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
        first = {name: value[0] for name, value in next(self._draws(x)).items()}
        with torch.no_grad():
            whole = functional_call(net, first, (x,))
        for hook in hooks:
            hook.remove()
        for name, out in made.items():
            if name and out.data_ptr() == whole.data_ptr() and out.numel() == whole.numel():
                net.set_submodule(name, nn.Identity())
                return net, layers[name]
        raise ValueError(
            "marginalize needs a network that ends in an nn.Linear layer, and this one does not"
        )

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
        with _seeded(seed):
            parameters, buffers = stack_module_state([self._make() for _ in range(count)])
        return {name: value.detach() for name, value in (parameters | buffers).items()}

    def _normal(self, count: int, seed: int) -> Weights:
        """Weights of the given variances, layer by layer."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {
            name: value.expand(count, *value.shape)
            for name, value in (*self.net.named_parameters(), *self.net.named_buffers())
        }
        for name, layer in self.net.named_modules():
            if not isinstance(layer, LAYERS):
                continue
            prefix = f"{name}." if name else ""
            fan_in = layer.weight[0].numel()
            scales = {"weight": math.sqrt(self.weight_variance / fan_in)}
            if layer.bias is not None:
                scales["bias"] = math.sqrt(self.bias_variance)
            for part, scale in scales.items():
                shape = (count, *getattr(layer, part).shape)
                if prefix + part not in drawn:  # tied to a layer that is drawn
                    continue
                drawn[prefix + part] = scale * torch.randn(shape, generator=generator)
        return drawn

    def _evaluate(self, body: nn.Module, weights: Weights, x: Points) -> Tensor:
        """The outputs of stacked networks at all points: (n, networks), or (n, c, networks)."""
        names = {name for name, _ in (*body.named_parameters(), *body.named_buffers())}
        weights = {name: value for name, value in weights.items() if name in names}
        count = len(next(iter(weights.values())))
        kind = "cuda" if x.device.type == "cuda" else "cpu"
        first = {name: value[0] for name, value in weights.items()}
        largest = largest_activation(body, x[:1], first)
        size = max(1, ACTIVATION_CHUNK[kind] // (largest * count))
        values = torch.cat([_run(body, weights, part) for part in x.split(size)])
        if len(values) != len(x) or values.ndim not in (2, 3):
            raise ValueError(
                f"on {len(x)} points a network of make_net must give (n,) or (n, c), got "
                f"{tuple(values.shape[:-1])}; wrap it in a module that does"
            )
        if self.marginalize:
            return values.flatten(1)
        return values[:, 0] if values.ndim == 3 and values.shape[1] == 1 else values

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


def _run(net: nn.Module, weights: Weights, x: Points) -> Tensor:
    if isinstance(x, Tensor) and is_plain(net, x.ndim):
        return evaluate_stack(net, weights, x)

    def one(given: Weights, points: Points) -> Tensor:
        return functional_call(net, given, (points,))

    with differentiable():
        return vmap(one, in_dims=(0, None), out_dims=-1, randomness="error")(weights, plain(x))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The global generator of the CPU at a seed of ours, and as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed % 2**63)
        yield
