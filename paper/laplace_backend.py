"""What laplace-torch is given and asked for: Jacobians, batches, and covariances of many priors."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

FEW = 8  # prior precisions, for which products of rows are not worth their while


def backend(tangent: Any) -> type:
    """The curvature by curvlinops, with Jacobians whose cost is linear in the number of points."""
    from laplace.curvature import CurvlinopsGGN, GGNInterface

    class Backend(CurvlinopsGGN):
        full = GGNInterface.full  # curvlinops' passes through the network for each parameter

        def jacobians(self, x: Tensor, enable_backprop: bool = False) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                return tangent.jacobian(x), self.model(x)

        def selected_output_jacobians(
            self, x: Tensor, outputs: Tensor, enable_backprop: bool = False
        ) -> tuple[Tensor, Tensor]:
            """Of one output a point, (n, 1, p), differentiable in the points."""
            values, names = self.model(x).detach(), self.model.named_parameters()
            weights = {name: value.detach() for name, value in names if value.requires_grad}
            picks = nn.functional.one_hot(outputs, values.shape[1]).to(values)

            def one(weights: dict[str, Tensor], point: Tensor, pick: Tensor) -> Tensor:
                return functional_call(self.model, weights, (point[None],))[0] @ pick

            parts = vmap(grad(one), in_dims=(None, 0, 0))(weights, x, picks)
            return torch.cat([part.flatten(1) for part in parts.values()], dim=1)[:, None], values

    return Backend


@torch.no_grad()
def last_layer(model: nn.Module, x: Tensor) -> nn.Module:
    """The layer that runs last, as laplace-torch finds it; it need not be written last."""
    from laplace.utils import FeatureExtractor

    extractor = FeatureExtractor(copy.deepcopy(model))  # which leaves hooks in what it is given
    extractor.find_last_layer(x)
    return extractor.last_layer


class Rows(TensorDataset):
    """Points and labels, taken a batch at a time and not one by one, until time is up."""

    end = math.inf

    def __getitems__(self, index: list[int]) -> tuple[Tensor, ...]:
        if time.monotonic() > self.end:
            raise TimeoutError("no step was made in the seconds given: give more")
        return self[index]


class Diagonal:
    """The covariances J (H + δI)⁻¹ Jᵀ in a basis where H is diagonal, for many precisions δ.

    Here it is that of the weights themselves. laplace-torch reads all of J for every δ; its numbers
    are far more than those of a covariance, and reading them is what takes the time.
    """

    def __init__(self, posterior: Any) -> None:
        self.values = posterior.H * posterior._H_factor

    def turn(self, jacobians: Tensor) -> Tensor:
        """Jacobians (n, c, p) in that basis."""
        return jacobians

    def covariances(self, jacobians: Tensor, prior_precisions: Sequence[float]) -> list[Tensor]:
        """(n, c, c) for each prior precision, of Jacobians (n, c, p)."""
        rows = self.turn(jacobians)
        if len(prior_precisions) < FEW:
            return [(rows / (self.values + value)) @ rows.mT for value in prior_precisions]
        weights = torch.stack([1 / (self.values + value) for value in prior_precisions], 1)
        n, c, _ = rows.shape
        found = rows.new_empty(len(prior_precisions), n, c, c)
        for i in range(c):
            sums = (rows[:, i : i + 1] * rows[:, i:]) @ weights
            found[:, :, i, i:] = found[:, :, i:, i] = sums.permute(2, 0, 1)
        return list(found)


class Kronecker(Diagonal):
    """The same with Kronecker factors, in whose basis H is diagonal.

    laplace-torch turns J into it and back for every δ.
    """

    def __init__(self, posterior: Any) -> None:
        kron = posterior.H * posterior._H_factor
        self.bases = kron.eigenvectors
        values = [torch.outer(*v) if len(v) == 2 else v[0] for v in kron.eigenvalues]
        self.values = torch.cat([value.flatten() for value in values])

    def turn(self, jacobians: Tensor) -> Tensor:
        """Each layer by itself."""
        sizes = [math.prod(len(basis) for basis in bases) for bases in self.bases]
        parts = jacobians.split(sizes, dim=2)
        return torch.cat([_turn(p, b) for p, b in zip(parts, self.bases, strict=True)], 2)


class Projected(Diagonal):
    """The same with the few functions of ELLA; NaN where laplace-torch finds H + δI singular."""

    def __init__(self, posterior: Any) -> None:
        self.gram = posterior.feature_gram / posterior.temperature
        known = self.gram.double().nan_to_num()  # what is no number is singular below
        values, vectors = torch.linalg.eigh(known)
        self.values = values.clamp_min(0)
        self.directions = (posterior.dual_directions.double() @ vectors).to(self.gram)

    def turn(self, jacobians: Tensor) -> Tensor:
        """(n, c, k), in float64."""
        return (jacobians @ self.directions).double()

    def covariances(self, jacobians: Tensor, prior_precisions: Sequence[float]) -> list[Tensor]:
        """(n, c, c) for each prior precision, of Jacobians (n, c, p)."""
        found = super().covariances(jacobians, prior_precisions)
        one = torch.eye(len(self.gram)).to(self.gram)
        tried = [torch.linalg.cholesky_ex(self.gram + value * one) for value in prior_precisions]
        return [
            part * math.nan if int(t.info) or not bool(t.L.isfinite().all()) else part
            for part, t in zip(found, tried, strict=True)
        ]


def _turn(part: Tensor, bases: Sequence[Tensor]) -> Tensor:
    """Rows (n, c, p) in the basis of one layer, p = p₁p₂ if it has two factors."""
    if len(bases) == 1:
        return part @ bases[0]
    rows = part.unflatten(2, (len(bases[0]), len(bases[1])))
    return (bases[0].mT @ rows @ bases[1]).flatten(2)


class Inducing:
    """The covariances of VaLLA, for many prior precisions δ at once.

    They are J(AᵀA + δI)⁻¹Jᵀ, A = LᵀJ_z = USVᵀ, with its factor L and the Jacobian J_z of its
    inducing points: K(S² + δI)⁻¹Kᵀ + RRᵀ/δ, where K = JV and R = J − KVᵀ. Nothing large is
    subtracted after the squares are taken. laplace-torch makes J_z and a decomposition of A anew
    for every δ and every batch.
    """

    def __init__(self, posterior: Any) -> None:
        factor = posterior._factor_matrix().double()
        columns = posterior._inducing_jacobians().double().mT @ factor
        basis, triangle = torch.linalg.qr(columns)
        if not bool(triangle.isfinite().all()):  # of a training that diverged
            self.squares, self.directions = basis[0] * torch.nan, basis * torch.nan
            return
        left, values, _ = torch.linalg.svd(triangle)
        self.squares, self.directions = values.square(), basis @ left

    def covariances(self, jacobians: Tensor, prior_precisions: Sequence[float]) -> list[Tensor]:
        """(n, c, c) for each prior precision, of Jacobians (n, c, p)."""
        jacobians = jacobians.double()
        known = jacobians @ self.directions
        rest = jacobians - known @ self.directions.mT
        unknown = rest @ rest.mT
        return [
            (known / (self.squares + value)) @ known.mT + unknown / value
            for value in prior_precisions
        ]


def flattened(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Nested dicts and lists of tensors and plain values as JSON and tensors by number."""
    tensors: dict[str, Tensor] = {}

    def flat(value: Any) -> Any:
        if isinstance(value, Tensor):
            name = str(len(tensors))
            tensors[name] = value
            return {"tensor": name}
        if isinstance(value, dict):
            return {"dict": {name: flat(part) for name, part in value.items()}}
        if isinstance(value, (list, tuple)):
            parts = [flat(part) for part in value]
            return {"tuple": parts} if isinstance(value, tuple) else parts
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"a {type(value).__name__} in the state of laplace-torch goes into no file")

    return flat(state), tensors


def unflattened(header: Any, tensors: dict[str, Tensor]) -> Any:
    """What `flattened` flattened."""
    if isinstance(header, list):
        return [unflattened(part, tensors) for part in header]
    if not isinstance(header, dict):
        return header
    if "tensor" in header:
        return tensors[header["tensor"]]
    if "tuple" in header:
        return tuple(unflattened(part, tensors) for part in header["tuple"])
    if "dtype" in header:
        return getattr(torch, header["dtype"])
    return {name: unflattened(part, tensors) for name, part in header["dict"].items()}
