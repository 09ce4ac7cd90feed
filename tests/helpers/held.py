"""What must hold of a spectrum that a hostile problem gave, against its dense float64 truth."""

import re
import warnings

import torch
from hostile import REFUSALS

from neuralef.solvers import subspace

MACHINE = torch.finfo(torch.float64).eps


def iterates():
    """Whether `Subspace` was told to iterate on problems of any size."""
    return subspace.DENSE_SIDE == 1


def attempt(problem, solver):
    """A spectrum, or an error, and what was warned of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            if isinstance(problem.gram, ValueError):
                raise problem.gram
            found = solver.solve(problem.gram)
        except (ValueError, TypeError) as error:
            found = error
    said = [str(one.message) for one in told]
    return found, [text for text in said if "torch.jit" not in text]


def solved(problem, solver):
    """A spectrum and by how much it is unfinished, or None after the one error of the damage."""
    spectrum, said = attempt(problem, solver)
    if isinstance(spectrum, Exception):
        assert problem.damage, f"refused: {spectrum}"
        assert re.search(REFUSALS[problem.damage], str(spectrum)), f"{problem.damage}: {spectrum}"
        return None
    assert not problem.damage, f"{problem.damage} was not noticed"
    few = [text for text in said if text.startswith("found ")]
    assert len(few) == (spectrum.rank < solver.k)
    unfinished = [text for text in said if text.startswith("subspace iteration stopped")]
    assert len(few + unfinished) == len(said), said
    assert not unfinished or iterates(), unfinished
    return spectrum, float(spectrum.residuals.nan_to_num().max()) if unfinished else 1e-10


def measured(problem, values):
    """Function values as rows ψ (g, r, k) of the operator W^½KW^½/n."""
    psi = problem.gram.fold(values).double()
    if problem.weights is None:
        return psi
    root = problem.weights.double().sqrt().repeat_interleave(problem.gram.layout.per_point)
    return root[:, None] * psi


def check_values(problem, spectrum, off):
    """As many eigenvalues as there are, and right; by iteration `off` by a share of the largest."""
    rounding = problem.gram.rounding()[:, None]
    truth = torch.linalg.eigvalsh(problem.operator()).flip(1)[:, : problem.k]
    mu = spectrum.eigenvalues.reshape(problem.gram.groups, -1)
    zero, there = torch.maximum(1e-9 * truth[:, :1], rounding), mu > 0
    error = torch.where(there, mu - truth[:, : mu.shape[1]], 0.0).abs()
    off = off if iterates() else 1e-13
    assert bool((error <= 10 * rounding + off * truth[:, :1]).all()), "eigenvalues"
    rank = there.sum(1)
    assert bool((rank >= (truth > 11 * zero).sum(1)).all()), "too few pairs"
    assert bool((rank <= (truth > 0.1 * zero - 10 * rounding).sum(1)).all()), "too many pairs"


def check_functions(problem, spectrum, exact=True):
    """Finite everywhere, their residuals as they are told and, if exact, orthonormal."""
    gram, operator = problem.gram, problem.operator()
    values = spectrum(gram.x).detach()
    assert bool(values.isfinite().all()), "functions"
    if problem.fresh is not None:
        assert bool(spectrum(problem.fresh).isfinite().all()), "functions at new points"
    psi, mu = measured(problem, values), spectrum.eigenvalues.reshape(gram.groups, -1)
    there, largest = mu > 0, torch.linalg.eigvalsh(operator)[:, -1:]
    safe = torch.where(there, mu, torch.inf)
    gap = (operator @ psi - psi * mu[:, None]).norm(dim=1) / psi.norm(dim=1).clamp_min(1e-300)
    said = spectrum.residuals.reshape(gram.groups, -1).where(there, 0.0)
    true = (gap / safe).where(there, 0.0)
    # of the terms that cancel in ψ, which K multiplies by up to μ₁, and of those of Kψ
    cancelled = gram.mean_diagonal()[:, None] / safe
    cancelled = cancelled.sqrt() if gram.has_root else cancelled
    arithmetic = MACHINE * (10 + cancelled) * largest / safe
    told = f"residuals {said} claimed, {true} true"
    unknown = gram.rounding()[:, None] / safe
    assert bool((true <= 10 * said + unknown + arithmetic).all()), told
    precision = torch.finfo(values.dtype).eps
    evaluated = torch.maximum(gram.rounding()[:, None], precision * largest) / safe
    assert bool((said <= 10 * (true + evaluated + arithmetic)).all()), told
    if exact:
        inner = psi.mT @ psi / len(gram) - torch.diag_embed(there.double())
        larger = torch.maximum(mu[:, :, None], mu[:, None]).where(mu[:, None] > 0, torch.inf)
        # norms, which no residual tells, are off by κ's own rounding as a share of μ
        off = 10 * (said + unknown + arithmetic) * mu
        slack = torch.maximum(off[:, :, None], off[:, None]) / larger + max(1e-12, 10 * precision)
        assert bool((inner.abs() <= slack).all()), f"orthonormal {inner}, {slack}"
