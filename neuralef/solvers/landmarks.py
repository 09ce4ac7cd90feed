"""How to choose the landmarks of Nyström's method."""

import torch
from torch import Tensor

from neuralef.gram import Gram
from neuralef.linalg import check_defined, eigvalsh, symmetric
from neuralef.points import POINTS_AT_ONCE

SELECTIONS = ("uniform", "k-means++", "leverage")


def choose_landmarks(
    gram: Gram, count: int, selection: str, k: int, generator: torch.Generator
) -> Tensor:
    """Indices (count,) of landmarks among the points of a Gram, ascending, for k eigenpairs."""
    if selection == "uniform":
        index = torch.randperm(len(gram), generator=generator)[:count]
    elif selection == "k-means++":
        index = _plus_plus(gram.x, count, generator)
    else:
        scores = leverage_scores(gram, count, k, generator)
        index = torch.multinomial(scores, count, generator=generator)
    return index.sort().values.to(gram.device)


def _plus_plus(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Points far from each other (Arthur & Vassilvitskii 2007), by scikit-learn."""
    from sklearn.cluster import kmeans_plusplus

    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    _, index = kmeans_plusplus(
        x.detach().flatten(1).double().cpu().numpy(), count, random_state=seed
    )
    return torch.from_numpy(index).long()


def leverage_scores(gram: Gram, count: int, k: int, generator: torch.Generator) -> Tensor:
    """Approximate ridge leverage scores (n,), up to a factor: what each point adds to the top k.

    κ_ii − κ_iS (κ_SS + λI)⁻¹ κ_Si on a uniform sample S of `count` points, with λ the sum of the
    eigenvalues of κ_SS beyond k over k (Musco & Musco 2017, one level of their recursion). Under a
    data measure κ is W^½ κ W^½.
    """
    assert gram.kernel is not None
    chosen = torch.randperm(len(gram), generator=generator)[:count].to(gram.device)
    sample, explained = gram.x[chosen], []
    with torch.no_grad():
        roots = gram.weigh(torch.ones(1, len(gram), 1, dtype=torch.float64, device=gram.device))[0]
        inner = gram.kernel(sample, sample).double() * roots[chosen] * roots[chosen].T
        inner = symmetric(inner)
        diagonal = gram.diagonal().double()
        check_defined(diagonal)
        values = eigvalsh(inner).flip(0)
        tail = values.clamp_min(0)[k:].sum() / k
        size = inner.diagonal().sum().maximum(diagonal.max())  # a sample may weigh nothing
        # and what rounding made indefinite
        ridge = torch.stack([tail, 1e-9 * size, -2 * values[-1]]).max()
        identity = torch.eye(count, dtype=inner.dtype, device=inner.device)
        factor = torch.linalg.cholesky(inner + ridge * identity)
        parts = zip(*(values.split(POINTS_AT_ONCE) for values in (gram.x, roots)), strict=True)
        for part, root in parts:
            cross = (gram.kernel(part, sample).double() * root).T * roots[chosen]
            check_defined(cross)
            image = torch.linalg.solve_triangular(factor, cross, upper=False)
            explained.append(image.square().sum(0))
    return (diagonal - torch.cat(explained)).clamp_min(1e-12 * float(diagonal.max())).cpu()
