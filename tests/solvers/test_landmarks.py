import pytest
import torch
from cases import K
from truth import points

import neuralef as nef
from neuralef.kernels import RBF, Coregional, Matern


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
