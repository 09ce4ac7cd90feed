import pytest
import torch
from cases import Sine, small
from safetensors.torch import save_file
from truth import assert_same, line, points

import neuralef as nef
from neuralef.kernels import RBF, Linear


@pytest.mark.parametrize("stop", [1, 30, 59])
def test_a_run_that_resumes_ends_where_an_uninterrupted_one_does(tmp_path, stop):
    gram, path = RBF().gram(points(50)), tmp_path / "run.safetensors"
    whole = small().solve(gram)
    part = small().solve(gram, callback=lambda r: r["step"] == stop, checkpoint=path)
    assert part.history[-1]["step"] == stop
    assert_same(small().solve(gram, checkpoint=path), whole)


def test_a_user_network_resumes_too(tmp_path):
    gram, path = RBF().gram(points(50)), tmp_path / "run.safetensors"
    networks = [Sine() for _ in range(3)]
    for network in networks[1:]:
        network.load_state_dict(networks[0].state_dict())
    whole = small().solve(gram, networks[0])
    small().solve(gram, networks[1], callback=lambda r: r["step"] == 20, checkpoint=path)
    assert_same(small().solve(gram, networks[2], checkpoint=path), whole)


def test_a_finished_run_trains_no_further(tmp_path):
    gram, path = RBF().gram(points(50)), tmp_path / "run.safetensors"
    whole = small().solve(gram, checkpoint=path)
    seen = []
    assert_same(small().solve(gram, checkpoint=path, callback=seen.append), whole)
    assert not seen


def patient():
    return nef.NeuralEF(1, steps=400, patience=40, oversample=0)


def test_patience_stops_early():
    spectrum = patient().solve(RBF().gram(line(64)))
    assert 40 <= spectrum.history[-1]["step"] < 400


def test_patience_survives_an_interruption(tmp_path):
    gram, path = RBF().gram(line(64)), tmp_path / "run.safetensors"
    whole = patient().solve(gram)
    stop = whole.history[-1]["step"] - 8
    patient().solve(gram, callback=lambda r: r["step"] == stop, checkpoint=path)
    assert_same(patient().solve(gram, checkpoint=path), whole)


def test_a_run_that_patience_ended_trains_no_further(tmp_path):
    gram, path = RBF().gram(line(64)), tmp_path / "run.safetensors"
    whole = patient().solve(gram, checkpoint=path)
    assert_same(patient().solve(gram, checkpoint=path), whole)


def other_tail(x):
    changed = x.clone()
    changed[1:] += 1
    return changed


@pytest.mark.parametrize(
    "resume",
    [
        lambda x, path: small(seed=1).solve(RBF().gram(x), checkpoint=path),
        lambda x, path: small(k=2).solve(RBF().gram(x), checkpoint=path),
        lambda x, path: small().solve(RBF().gram(x[1:]), checkpoint=path),
        lambda x, path: small().solve(RBF().gram(x + 1), checkpoint=path),
        lambda x, path: small().solve(RBF().gram(x.float()), checkpoint=path),
        lambda x, path: small().solve(RBF().gram(x), Sine(), checkpoint=path),
        lambda x, path: small().solve(RBF(3.0).gram(x), checkpoint=path),
        lambda x, path: small().solve(Linear().gram(x), checkpoint=path),
        lambda x, path: small().solve(RBF().gram(other_tail(x)), checkpoint=path),
    ],
    ids=["seed", "k", "size", "data", "dtype", "network", "lengthscale", "kernel", "later points"],
)
def test_a_checkpoint_of_another_run_is_refused_and_kept(tmp_path, resume):
    x, path = points(50), tmp_path / "run.safetensors"
    small().solve(RBF().gram(x), callback=lambda r: r["step"] == 5, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="another run"):
        resume(x, path)
    assert path.read_bytes() == before


def test_progress_may_be_shown_or_hidden_in_a_resumed_run(tmp_path):
    gram, path = RBF().gram(points(50)), tmp_path / "run.safetensors"
    small(progress=False).solve(gram, callback=lambda r: r["step"] == 5, checkpoint=path)
    spectrum = small(progress=None).solve(gram, checkpoint=path)
    assert spectrum.history[-1]["step"] == 60


def test_files_that_are_no_checkpoints_are_refused_and_kept(tmp_path):
    gram = RBF().gram(points(50))
    path = tmp_path / "run.safetensors"
    for write in (
        lambda: path.write_bytes(b"not a checkpoint at all"),
        lambda: save_file({"a": torch.ones(2)}, path),
        lambda: nef.Nystrom(2).solve(gram).save(path),
    ):
        write()
        before = path.read_bytes()
        with pytest.raises(ValueError, match=r"damaged|is not a"):
            small().solve(gram, checkpoint=path)
        assert path.read_bytes() == before


def test_a_checkpoint_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    seen = []
    with pytest.raises(ValueError, match="cannot write"):
        small().solve(
            RBF().gram(points(50)), callback=seen.append, checkpoint=tmp_path / "file" / "run"
        )
    assert not seen
