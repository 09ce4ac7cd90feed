"""The NN-GP kernel of any architecture, from networks sampled from its prior."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from numbers import Real

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from neuralef.checks import check_count, check_points, check_positive
from neuralef.jacobian import models
from neuralef.jacobian.models import LAYERS, Weights
from neuralef.kernels.base import SampledKernel
from neuralef.modules.stacked import evaluate_stack, is_plain
from neuralef.points import Layout, Points, needs_gradient
from neuralef.training import stream

DRAWN_AT_ONCE = 64  # networks from a seed of their own: another number would change all draws


class NNGP(SampledKernel):
    """κ(x, x′) = E_θ f(x; θ) f(x′; θ) over networks with random weights, from s samples of them.

    `make_net()` builds a network (n, …) ↦ (n,), (n, 1) or (n, c). Its own random initialisation is
    the prior; or, with `weight_variance` σ_w² and `bias_variance` σ_b², the weights of linear and
    convolutional layers are N(0, σ_w²/fan_in) and their biases N(0, σ_b²), the rest staying as it
    was made. `marginalize` then takes the mean over the last linear layer in closed form, so that
    each of its inputs is a feature: a better estimate of the same kernel, that of one output.
    `gram(x)` is a `FeatureGram` (Lee et al. 2018; Novak et al. 2019). Variances are fixed numbers,
    not parameters that train: those of `MLPGP` do.

    >>> net = lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> kernel = NNGP(net, samples=100, weight_variance=2.0, bias_variance=1.0)
    >>> kernel.gram(torch.randn(9, 2)).phi.shape
    torch.Size([9, 100])
    """

    def __init__(
        self, make_net: Callable[[], nn.Module], samples: int = 2000,
        weight_variance: float | None = None, bias_variance: float | None = None,
        marginalize: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if not callable(make_net) or isinstance(make_net, nn.Module):
            raise TypeError("make_net must build a network, such as lambda: nn.Linear(2, 1)")
        self.make_net, self.samples = make_net, check_count(samples, "samples")
        self.seed = check_count(seed, "seed", least=0)
        if (weight_variance is None) != (bias_variance is None):
            raise ValueError("give both weight_variance and bias_variance, or neither")
        if weight_variance is not None:
            check_positive(weight_variance, "weight_variance")
            if not (isinstance(bias_variance, Real) and 0 <= bias_variance < math.inf):
                raise ValueError(f"bias_variance must be at least 0, got {bias_variance!r}")
        elif marginalize:
            raise ValueError("marginalize needs the prior's weight_variance and bias_variance")
        self.own_prior, self.marginalize = weight_variance is None, marginalize
        self.weight_variance, self.bias_variance = weight_variance, bias_variance
        self._variances = weight_variance or 0.0, bias_variance or 0.0
        with _seeded(self.seed):  # for what the given variances do not say
            self.net = self._make()

    def _make(self) -> nn.Module:
        net = self.make_net()
        if not isinstance(net, nn.Module):
            raise TypeError(f"make_net must build a torch module, got {type(net).__name__}")
        if not any(True for _ in net.parameters()):
            raise ValueError(f"{type(net).__name__} has no parameters to draw")
        if any(isinstance(module, nn.RNNBase) for module in net.modules()):
            raise ValueError(
                "torch's recurrent layers take no other weights: use nn.LSTMCell and the like"
            )
        models.check_model(net.eval())
        return net.requires_grad_(False)

    def layout(self, x: Points) -> Layout:
        """That of the networks' outputs, after a trial of one on the first of the points x."""
        x = check_points(x, integers=True)
        first = _first(next(self._draws(x)))
        found = models.try_model(lambda points: models.call_with(self.net, first, points), x)
        return Layout(1 if self.marginalize else found)

    def features(self, x: Points) -> Tensor:
        """φ(x), (n, s) or (n, c, s): the outputs of the networks, or their last hidden units."""
        x = check_points(x, integers=True)
        self.layout(x)
        body, last = (self.net, None) if not self.marginalize else self._without_last(x[:1])
        phi, start = None, 0
        with torch.set_grad_enabled(needs_gradient(x)):
            for weights in self._draws(x):
                values = self._evaluate(body, weights, x)
                units = values.shape[-1] // len(next(iter(weights.values())))
                if phi is None:  # one feature more for the bias of a last layer
                    width = self.samples * units + (last is not None)
                    phi = values.new_empty((*values.shape[:-1], width))
                phi[..., start : start + values.shape[-1]] = values
                start += values.shape[-1]
        assert phi is not None
        return phi if last is None else self._with_bias(phi, last)

    def _with_bias(self, phi: Tensor, last: nn.Linear) -> Tensor:
        """Scale hidden units so that κ is their mean times σ_w², plus the variance of the bias."""
        s = phi.shape[1]
        weight, bias = self._variances
        scales = phi.new_full((s,), math.sqrt(weight * s / (s - 1)))
        scales[-1] = 0.0 if last.bias is None else math.sqrt(bias * s)
        phi[:, -1] = 1.0
        return phi * scales if phi.requires_grad else phi.mul_(scales)

    @torch.no_grad()
    def _without_last(self, x: Points) -> tuple[nn.Module, nn.Linear]:
        """The network up to the linear layer whose output is its own, and that layer."""
        weights = _first(next(self._draws(x)))
        whole = models.call_with(self.net, weights, x)
        for name, layer in reversed(list(self.net.named_modules())):
            if not isinstance(layer, nn.Linear):
                continue
            body = copy.deepcopy(self.net) if name else nn.Identity()
            if name:
                body.set_submodule(name, nn.Identity())
            own = {key: f"{name}.{key}".lstrip(".") for key, _ in layer.named_parameters()}
            # errors of what follows the layer and cannot take its input, or of tied weights
            with suppress(RuntimeError, KeyError, TypeError):
                hidden = functional_call(body, weights, (x,))
                made = functional_call(layer, {key: weights[own[key]] for key in own}, hidden)
                if hidden.ndim == 2 and torch.equal(made.flatten(), whole.flatten()):
                    return body, layer
        raise ValueError(
            "marginalize needs a network that ends in an nn.Linear layer on vectors (n, units)"
        )

    def _draws(self, x: Points) -> Iterator[Weights]:
        """The weights of some networks at a time, stacked, where the points are."""
        dtype = x.dtype if x.dtype.is_floating_point else torch.float32
        for group, start in enumerate(range(0, self.samples, DRAWN_AT_ONCE)):
            count = min(DRAWN_AT_ONCE, self.samples - start)
            seed = stream(self.seed, group)
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
        parameters: Weights = dict(self.net.named_parameters())
        normal: Weights = {}
        for owner, layer in self.net.named_modules():
            if not isinstance(layer, LAYERS):
                continue
            fan_in = layer.weight[0].numel()
            weight, bias = self._variances
            variances = {"weight": weight / fan_in, "bias": bias}
            for part, variance in variances.items():
                name = f"{owner}.{part}".lstrip(".")
                if name in parameters:  # else none, tied to another name, or made from others
                    draws = torch.randn(count, *parameters[name].shape, generator=generator)
                    normal[name] = math.sqrt(variance) * draws
        left = [n for n, value in parameters.items() if value.ndim > 1 and n not in normal]
        if left:
            raise ValueError(
                f"the given variances do not say how to draw {', '.join(left)}, of no linear or "
                "convolutional layer: leave them out, and make_net's own start is the prior"
            )
        parameters |= self.net.named_buffers()
        return {n: normal.get(n, v.expand(count, *v.shape)) for n, v in parameters.items()}

    def _evaluate(self, body: nn.Module, weights: Weights, x: Points) -> Tensor:
        """The outputs of stacked networks at all points: (n, networks), or (n, c, networks)."""
        first, count = _first(weights), len(next(iter(weights.values())))
        if not any(True for _ in (*body.parameters(), *body.buffers())):  # all networks are alike
            return body(x).flatten(1).repeat(1, count)
        size = max(1, models.activations_at_once(body, x, first) // count)
        values = torch.cat([_run(body, weights, part) for part in x.split(size)])
        if self.marginalize:
            return values.flatten(1)
        return values.squeeze(1) if values.ndim == 3 else values


def _first(weights: Weights) -> Weights:
    """Those of the first of stacked networks."""
    return {name: value[0] for name, value in weights.items()}


def _run(net: nn.Module, weights: Weights, x: Points) -> Tensor:
    layers = [name for name, part in net.named_children() if isinstance(part, LAYERS)]
    untied = all(f"{name}.weight" in weights for name in layers)
    if untied and isinstance(x, Tensor) and is_plain(net, x.ndim):
        return evaluate_stack(net, weights, x)

    def one(given: Weights, points: Points) -> Tensor:
        return models.call_with(net, given, points)

    with models.differentiable():
        return vmap(one, in_dims=(0, None), out_dims=-1, randomness="error")(weights, x)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The global generator of the CPU at a seed of ours, and as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed % 2**63)
        yield
