"""Steps that a GPU captures, training in bfloat16, and runs that resume."""

from contextlib import contextmanager

import pytest
import torch
from cases import K, Sine, small
from models import MODELS, network_for
from safetensors.torch import save_file
from truth import assert_same, cosines, line, points

import neuralef as nef
from neuralef.kernels import NTK, RBF, Linear
from neuralef.networks import SharedMLP, StackedMLP
from neuralef.training import WARM_UP, Replayed, Step

SOLVERS = [nef.NeuralEF, nef.SpIN, nef.NestedLoRA, nef.Distill]
N = 24
SAMPLES = [None, 40]


class Recording:
    """In the place of a CUDA graph: does again what was called in it, with the same tensors."""

    def replay(self):
        self.again()


@pytest.fixture
def graphs(monkeypatch):
    made = []

    @contextmanager
    def capture(graph):
        made.append(graph)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def stepper(graphs):
    """What was done, plainly and by replays; capturing does nothing, as on a GPU."""
    done = {"plain": [], "replayed": []}

    def function(index):
        if graphs and not hasattr(graphs[-1], "again"):
            graphs[-1].again = lambda: done["replayed"].append(index.tolist())
        else:
            done["plain"].append(index.tolist())

    return function, done


def test_every_call_is_done_once_with_its_own_points(graphs):
    function, done = stepper(graphs)
    step = Replayed(function, captured=True)
    calls = [torch.tensor([i, i + 1]) for i in range(WARM_UP + 4)]
    for index in calls:
        step(index)
    assert done["plain"] == [index.tolist() for index in calls[:WARM_UP]]
    assert done["replayed"] == [index.tolist() for index in calls[WARM_UP:]]
    assert len(graphs) == 1
    assert calls[WARM_UP].tolist() == [WARM_UP, WARM_UP + 1]  # what was given is not written to


def test_other_numbers_of_points_are_plain(graphs):
    function, done = stepper(graphs)
    step = Replayed(function, captured=True)
    for i in range(WARM_UP):
        step(torch.tensor([i]))
    step(torch.tensor([7]))
    step(torch.tensor([8, 9]))
    step(torch.tensor([10]))
    assert done["plain"][WARM_UP:] == [[8, 9]]
    assert done["replayed"] == [[7], [10]]
    assert len(graphs) == 1


@pytest.mark.parametrize("first", [0, 2, 5])
def test_the_usual_number_is_captured_wherever_the_short_last_batch_comes(graphs, first):
    function, done = stepper(graphs)
    step = Replayed(function, captured=True)
    epochs = 4 * [*([[0, 1]] * 5), [2]]  # five batches of two points, one of one
    for batch in epochs[first:]:
        step(torch.tensor(batch))
    assert len(graphs) == 1
    assert all(len(batch) == 2 for batch in done["replayed"])
    assert len(done["replayed"]) >= 20 - first - WARM_UP
    assert len(done["plain"]) + len(done["replayed"]) == len(epochs) - first


def test_nothing_is_captured_unless_asked(graphs):
    function, done = stepper(graphs)
    step = Replayed(function, captured=False)
    for i in range(3 * WARM_UP):
        step(torch.tensor([i]))
    assert len(done["plain"]) == 3 * WARM_UP
    assert not graphs


def name(solver):
    return solver.__name__


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_bfloat16_finds_nearly_what_float32_finds(solver):
    x = points(120, 1).float()
    gram = RBF().gram(x)
    exact = nef.Nystrom(K).solve(gram)
    half = solver(K, steps=200, precision="bfloat16").solve(gram)
    whole = solver(K, steps=200).solve(gram)
    assert half(x).dtype == torch.float32
    assert {value.dtype for value in half.network.parameters()} == {torch.float32}
    assert half.eigenvalues.dtype == half.rotation.dtype == torch.float64
    torch.testing.assert_close(half.eigenvalues, whole.eigenvalues, rtol=0.01, atol=0)
    assert float(cosines(half(x), exact(x)).detach().min()) > 0.99
    assert half.solver["precision"] == "bfloat16"


def test_bfloat16_is_really_used():
    x = points(40).float()
    spectra = [small(precision=p).solve(RBF().gram(x)) for p in ("float32", "bfloat16")]
    assert not torch.equal(spectra[0](x), spectra[1](x))


@pytest.mark.parametrize("network", [StackedMLP, SharedMLP], ids=name)
def test_bfloat16_changes_nothing_for_float64(network):
    """Autocast leaves float64 alone."""
    gram = RBF().gram(points(40))
    runs = [
        small(precision=p).solve(gram, network(2, K + 1, seed=0).double())
        for p in ("float32", "bfloat16")
    ]
    assert torch.equal(runs[0](gram.x), runs[1](gram.x))


@pytest.mark.parametrize("word", ["float16", "float64", "bf16", "", None, 16, torch.bfloat16])
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_other_precisions_are_refused(solver, word):
    with pytest.raises(ValueError, match="precision must be one of"):
        solver(K, precision=word)


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_capture_on_a_cpu_changes_nothing(solver):
    gram = NTK(torch.nn.Linear(2, 1).double().eval(), samples=20).gram(points(40))
    runs = [solver(2, steps=30, capture=capture).solve(gram) for capture in (None, False, True)]
    assert_same(runs[0], runs[1])
    assert_same(runs[0], runs[2])


@pytest.mark.parametrize("word", ["yes", 2, 0.5])
def test_capture_is_yes_or_no(word):
    with pytest.raises(TypeError, match="capture must be True or False"):
        small(capture=word)


def patient():
    return nef.NeuralEF(1, steps=400, patience=40, oversample=0)


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


def test_runs_of_other_precision_do_not_share_a_checkpoint(tmp_path):
    gram, path = RBF().gram(points(40).float()), tmp_path / "run.safetensors"
    stopping = lambda record: record["step"] == 5  # noqa: E731
    small(precision="bfloat16").solve(gram, callback=stopping, checkpoint=path)
    with pytest.raises(ValueError, match="another run: precision differ"):
        small().solve(gram, checkpoint=path)
    whole = small(precision="bfloat16").solve(gram)
    assert_same(small(precision="bfloat16").solve(gram, checkpoint=path), whole)


@pytest.mark.parametrize("stop", [1, 20])
@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
def test_a_run_on_dicts_resumes(tmp_path, samples, stop):
    case, path = MODELS[7], tmp_path / "run.safetensors"
    gram = NTK(case.make(), samples).gram(case.twin(N))
    whole = small(steps=25).solve(gram, network_for(case))
    stopping = lambda record: record["step"] == stop  # noqa: E731
    small(steps=25).solve(gram, network_for(case), callback=stopping, checkpoint=path)
    assert_same(small(steps=25).solve(gram, network_for(case), checkpoint=path), whole)
    x = case.twin(N)
    x["mask"] = x["mask"].clone()
    x["mask"][-1, 1] ^= True
    with pytest.raises(ValueError, match="another run"):
        small(steps=25).solve(NTK(case.make(), samples).gram(x), network_for(case), checkpoint=path)


def test_momentum_is_read_into_the_order_in_memory_that_the_weights_have():
    """Otherwise a fused optimiser refuses to go on with a network whose channels lie last."""
    layer = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    def step():
        work = lambda index: layer(torch.ones(1, 3, 5, 5)).sum().backward()  # noqa: E731
        return Step(torch.optim.SGD, layer.parameters(), work, momentum=0.9)

    first, second = step(), step()
    first(torch.zeros(1), rate=0.1)
    second.load_state_dict({n: t.contiguous() for n, t in first.state_dict().items()})
    buffer = second.optimizer.state[layer.weight]["momentum_buffer"]
    assert buffer.stride() == layer.weight.stride() != buffer.contiguous().stride()
    assert torch.equal(buffer, first.optimizer.state[layer.weight]["momentum_buffer"])
