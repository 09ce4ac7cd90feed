import pytest
import torch
from cases import K
from truth import points

import neuralef as nef
from neuralef.kernels import RBF, Coregional, Function, Linear, Matern, Polynomial


@pytest.mark.parametrize("selection", ["uniform", "k-means++", "leverage"])
def test_all_points_as_landmarks_reproduce_the_kernel(selection):
    x = points(60)
    solver = nef.Nystrom(60, landmarks=60, selection=selection)
    spectrum = solver.solve(Matern(0.5).gram(x))
    with torch.no_grad():
        torch.testing.assert_close(spectrum.kernel(x, x), Matern(0.5)(x, x), rtol=0, atol=1e-8)


@pytest.mark.parametrize("selection", ["k-means++", "leverage"])
def test_chosen_landmarks_are_better_than_random_ones(selection, tmp_path):
    x = points(600)
    gram, k = RBF().gram(x), K
    exact = nef.Nystrom(k).solve(gram)
    chosen = nef.Nystrom(k, landmarks=60, selection=selection).solve(gram)
    random = nef.Nystrom(k, landmarks=60).solve(gram)

    def error(spectrum):
        return float((spectrum.eigenvalues / exact.eigenvalues - 1).abs().max())

    assert error(chosen) < 0.1 * error(random)
    assert float(chosen.residuals.max()) < float(random.residuals.max())
    chosen.save(tmp_path / "s")
    assert torch.equal(nef.load(tmp_path / "s")(x), chosen(x))


def test_selection_of_landmarks_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="say how many"):
        nef.Nystrom(2, selection="leverage")
    with pytest.raises(ValueError, match="selection must be one of"):
        nef.Nystrom(2, landmarks=5, selection="best")
    joint = Coregional(RBF(), torch.eye(2)).gram(points(30))
    with pytest.raises(ValueError, match="scalar kernel"):
        nef.Nystrom(2, landmarks=5, selection="leverage").solve(joint)


@pytest.mark.parametrize("selection", ["uniform", "k-means++", "leverage"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [Linear(), Polynomial(2), RBF(1e3), 1e-8 * Linear()], ids=repr)
def test_landmarks_of_a_kernel_of_low_rank(selection, dtype, kernel):
    x = points(80, dtype=dtype).requires_grad_()
    exact = nef.Nystrom(2).solve(kernel.gram(x.detach()))
    for count in (6, 40):
        spectrum = nef.Nystrom(2, landmarks=count, selection=selection).solve(kernel.gram(x))
        assert bool(spectrum(x).isfinite().all())
        assert not any(kept.requires_grad for kept in spectrum.buffers())
        if selection != "uniform" and count == 40:  # far more than the kernel has functions
            gap = (spectrum.eigenvalues - exact.eigenvalues).abs().max()
            share = max(1e-8, 100 * torch.finfo(dtype).eps)
            assert float(gap) < share * float(exact.eigenvalues[0])


@pytest.mark.parametrize("selection", ["uniform", "k-means++", "leverage"])
def test_a_kernel_that_is_nan_between_landmarks_is_named(selection):
    x = points(600, 1)
    far = Function(lambda a, b: torch.where((a - b.T).abs() > 4, torch.nan, RBF()(a, b)))
    with pytest.raises(ValueError, match="the kernel gives NaN or infinite values"):
        nef.Nystrom(2, landmarks=300, selection=selection).solve(far.gram(x))
