"""How to choose the landmarks of Nyström's method."""

import torch
from torch import Tensor

from neuralef.gram import Gram
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
    _, index = kmeans_plusplus(x.flatten(1).double().cpu().numpy(), count, random_state=seed)
    return torch.from_numpy(index).long()


def leverage_scores(gram: Gram, count: int, k: int, generator: torch.Generator) -> Tensor:
    """Approximate ridge leverage scores (n,), up to a factor: what each point adds to the top k.

    κ_ii − κ_iS (κ_SS + λI)⁻¹ κ_Si on a uniform sample S of `count` points, with λ the sum of the
    eigenvalues of κ_SS beyond k over k (Musco & Musco 2017, one level of their recursion).
    """
    assert gram.kernel is not None
    sample = gram.x[torch.randperm(len(gram), generator=generator)[:count].to(gram.device)]
    explained = []
    with torch.no_grad():
        inner = gram.kernel(sample, sample).double()
        diagonal = gram.diagonal().double()
        tail = torch.linalg.eigvalsh(inner).clamp_min(0).flip(0)[k:].sum() / k
        ridge = torch.maximum(tail, 1e-9 * inner.diagonal().sum())
        identity = torch.eye(count, dtype=inner.dtype, device=inner.device)
        factor = torch.linalg.cholesky(inner + ridge * identity)
        for part in gram.x.split(POINTS_AT_ONCE):
            cross = gram.kernel(part, sample).double().T
            root = torch.linalg.solve_triangular(factor, cross, upper=False)
            explained.append(root.square().sum(0))
    return (diagonal - torch.cat(explained)).clamp_min(1e-12 * float(diagonal.max())).cpu()
