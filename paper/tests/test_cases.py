"""The classifiers of the study of linearised Laplace, its tables, and its command."""

import dataclasses
import json
import warnings
import zipfile

import pytest
import torch
from laplace_studies import PLANE, SETTINGS, checkpoint, few, tiny
from studies import blobs, never
from torch import nn

from neuralef.laplace import LinearizedLaplace
from neuralef.networks import ResNet
from neuralef.report import read_result
from neuralef.warnings import warn_user
from paper import cases, laplace
from paper.cases import Plan, image_case, plane_case, read_resnet
from paper.cifar import normalised
from paper.posteriors import Case, SharedComputations

# Classifiers


def test_ood_points_of_the_plane_lie_far_from_its_data():
    plan = Plan("plane", train=100, test=80)
    before = torch.get_rng_state()
    ((name, case),) = plane_case(plan, "cpu", 0, lambda line: None)
    assert torch.equal(torch.get_rng_state(), before)
    assert name == "two-moon"
    assert (len(case.x), len(case.test), len(case.ood)) == (100, 80, 80)
    assert float(torch.cdist(case.ood, case.x).min()) > 1
    found = case.model(case.test).argmax(1)
    assert float((found == case.test_labels).double().mean()) > 0.8
    assert not case.model.training
    ((_, again),) = plane_case(plan, "cpu", 0, lambda line: None)
    assert torch.equal(again.model(case.test), case.model(case.test))


def test_images_are_cifars_and_ood_ones_svhns(monkeypatch):
    asked = []

    def read(name, split, root=None, *, verify=True):
        asked.append((name, split, root, verify))
        return blobs(name, split)

    tiny(monkeypatch, "checkpoint", read)
    case = image_case(ResNet(8, 2, seed=0), Plan("checkpoint", 30, 24), "folder", "cpu")
    assert asked == [
        ("cifar10", "train", "folder", True),
        ("cifar10", "test", "folder", True),
        ("svhn", "test", "folder", False),  # any of its images do
    ]
    assert (len(case.x), len(case.labels), len(case.test), len(case.ood)) == (30, 30, 24, 24)
    assert torch.equal(case.ood, normalised(blobs("svhn", "test")[0][:24], "cpu"))
    assert torch.equal(case.test_labels, blobs("cifar10", "test")[1][:24])
    assert not case.model.training


def test_the_first_network_has_all_of_the_classifier(monkeypatch):
    tiny(monkeypatch, "checkpoint")
    model = ResNet(8, 2, seed=0)
    case = image_case(model, Plan("checkpoint", 30, 24), None, "cpu")
    network = next(iter(case.networks.values()))(4, False, 0).eval()
    assert network(case.x).shape == (30, 10, 4)
    # with the classifier's own last layer in the place of its heads it is the classifier
    wide = model.widened(2, seed=0).eval()
    network.network.fc = wide.fc
    assert network.network.conv1.weight.shape[0] == 4
    torch.testing.assert_close(network.network(case.x), model(case.x))


@pytest.mark.parametrize(("depth", "width"), [(8, 2), (14, 3)])
def test_a_state_dict_tells_the_depth_and_the_width(tmp_path, depth, width):
    path, saved = tmp_path / "weights.pt", ResNet(depth, width, outputs=10, seed=5)
    torch.save(saved.state_dict(), path)
    name, model = read_resnet(str(path))
    assert name == f"ResNet-{depth}"
    for key, value in saved.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)


def test_without_a_checkpoint_it_is_said_where_there_are_some():
    with pytest.raises(ValueError, match=r"--checkpoint FILE.*chenyaofo/pytorch-cifar-models"):
        read_resnet(None)


@pytest.mark.parametrize("name", ["there.pt", "."])
def test_a_missing_checkpoint_is_named(name):
    with pytest.raises(FileNotFoundError, match=f"no such checkpoint: {name}"):
        read_resnet(name)


class Other:
    """Nothing that a file of weights may hold."""


def state(**changes):
    found = ResNet(8, 2, outputs=10, seed=0).state_dict() | changes
    return {name: value for name, value in found.items() if value is not None}


OOD = {
    "empty": b"",
    "words": b"no weights at all",
    "a greeting": b"hello world",
    "a full stop": b".",
    "letters": b"aaaaaaaa",
    "half a number": b"J\x00",
    "other zip": None,
    "an object": Other(),
    "a list": [1, 2],
    "a tensor": torch.ones(3),
    "numbers for names": {0: torch.ones(2)},
    "nothing": {},
    "no first layer": state(**{"conv1.weight": None}),
    "no last layer": state(**{"fc.weight": None}),
    "no blocks": {k: v for k, v in state().items() if not k.startswith("layer1")},
    "a vector for a convolution": state(**{"conv1.weight": torch.ones(3)}),
    "a number for a matrix": state(**{"fc.weight": torch.tensor(1.0)}),
    "another width": state(**{"bn1.weight": torch.ones(5)}),
    "something more": state(more=torch.ones(2)),
    "words for weights": state(**{"conv1.weight": "a"}),
    "wrapped": {"state_dict": state()},
    "a hundred classes": ResNet(8, 2, outputs=100, seed=0).state_dict(),
}


@pytest.mark.parametrize("kind", OOD)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, kind):
    path, content = tmp_path / "weights.pt", OOD[kind]
    if kind == "other zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", "b")
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=r"weights\.pt is no state dict of a ResNet") as refused:
        read_resnet(str(path))
    assert "\n" not in str(refused.value)
    assert "\x1b" not in str(refused.value)  # an escape that is cut off colours the terminal


def test_a_wrong_checkpoint_is_found_out_before_data_are_read(tmp_path, monkeypatch):
    tiny(monkeypatch, "checkpoint", never)
    for path in (None, str(tmp_path / "missing.pt")):
        with pytest.raises((ValueError, FileNotFoundError), match="checkpoint"):
            laplace.run(tmp_path, "tiny", checkpoint=path)
    assert not list(tmp_path.iterdir())


def test_the_residual_makes_do_with_the_functions_there_are(monkeypatch):
    """Three points of two outputs have six functions at most, and k = 7 asks for more."""
    torch.manual_seed(0)
    x, labels = torch.randn(3, 1), torch.tensor([0, 1, 0])
    model = nn.Linear(1, 2).eval()  # of rank four
    case = Case(model, x, labels, x, labels, x + 9, {}, lambda *given: None, cases.jitter)
    few_functions = dataclasses.replace(SETTINGS, k=5, most=6)
    preset = dataclasses.replace(PLANE, settings=few_functions, exact=(6,))
    shared = SharedComputations(case, few_functions, 0, lambda line: None)
    shared.case.networks["own"] = lambda *given: None
    exact = {
        name: method for name, method in laplace.methods(shared, preset) if name.startswith("exact")
    }
    assert list(exact) == ["exact, k = 6", "exact, k = 6, with residual"]
    for method in exact.values():
        assert method.build(0).spectrum.k == 4


def test_a_small_and_the_largest_spectrum_have_residuals():
    model = nn.Linear(1, 2).eval()
    x, labels = torch.randn(3, 1), torch.tensor([0, 1, 0])
    case = Case(model, x, labels, x, labels, x, {"own": None}, None, cases.jitter)
    settings = dataclasses.replace(SETTINGS, most=70)
    shared = SharedComputations(case, settings, 0, lambda line: None)
    found = [name for name, _ in laplace.methods(shared, PLANE) if name.endswith("with residual")]
    assert found == ["exact, k = 50, with residual", "exact, k = 70, with residual"]


@pytest.mark.parametrize(
    ("less", "kinds"),
    [({"distilled": False}, ("distilled",)), ({"exact": ()}, ("exact", "sampled"))],
)
def test_a_preset_may_leave_out_what_costs_most(less, kinds):
    model = nn.Linear(1, 2).eval()
    x, labels = torch.randn(3, 1), torch.tensor([0, 1, 0])
    case = Case(model, x, labels, x, labels, x, {"own": None}, None, cases.jitter)
    shared = SharedComputations(case, SETTINGS, 0, lambda line: None)
    all_of_them = [name for name, _ in laplace.methods(shared, PLANE)]
    left = [name for name, _ in laplace.methods(shared, dataclasses.replace(PLANE, **less))]
    assert left == [name for name in all_of_them if not name.startswith(kinds)]
    assert len(left) < len(all_of_them)


def test_chance_alone_leaves_an_ece_that_falls_with_the_number_of_points():
    torch.manual_seed(0)
    model = nn.Linear(2, 3).eval()
    found = {}
    for count in (200, 20_000):
        x = torch.randn(count, 2)
        # labels that have nothing to do with the model: only how sure it may be is taken from them
        case = Case(model, x, x[:, 0].long() % 3, x, torch.arange(count) % 3, x, {}, None, None)
        preset = dataclasses.replace(PLANE, held=count // 10, splits=3)
        found[count] = laplace.attainable(case, preset, 0)
    for key in ("untuned", "tuned"):
        assert found[20_000][key] < 0.01 < 0.02 < found[200][key] < 0.3
        assert 0 < found[20_000]["spread"][key] < found[200]["spread"][key] < found[200][key]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("the best temperature lies at the edge of what was looked at", "while fitting"),
        ("the evidence chooses the prior variance as if there were no tail", "while tuning"),
        ("something else", "always"),
    ],
)
def test_what_every_fold_would_say_again_is_not_said(tmp_path, monkeypatch, message, said):
    """Nor that a residual is fitted by the evidence: it is tuned afterwards."""
    tiny(monkeypatch, "checkpoint")
    few(monkeypatch)
    times = {"fit": "while fitting", "tune_on": "while tuning"}

    def outspoken(work, time):
        def speak(*given):
            warn_user(f"{message}, {time}")
            return work(*given)

        return speak

    for name, time in times.items():
        work = outspoken(getattr(LinearizedLaplace, name), time)
        monkeypatch.setattr(LinearizedLaplace, name, work)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        laplace.run(tmp_path, "tiny", checkpoint=checkpoint(tmp_path))
    found = {str(warning.message) for warning in caught}
    for time in times.values():
        assert (f"{message}, {time}" in found) == (said in (time, "always"))


# The command


def test_reproduce_runs_the_study(reproduce, monkeypatch, tmp_path):
    tiny(monkeypatch, "checkpoint")
    few(monkeypatch)
    words = ("--preset", "tiny", "--seed", 3, "--checkpoint", checkpoint(tmp_path))
    code, out, errors = reproduce("laplace", *words)
    assert (code, "left out" in errors) == (0, False)
    assert "written to runs/laplace-tiny" in out
    assert "ResNet-8 | MAP | 3: " in errors  # progress, while standard output stays clean
    result = read_result(tmp_path / "runs/laplace-tiny")
    assert result["config"]["seed"] == 3
    code, out, _ = reproduce("show", "runs/laplace-tiny")
    assert (code, "exact, k = 2" in out) == (0, True)
    assert json.loads(reproduce("show", "runs/laplace-tiny", "--json")[1]) == result
    assert reproduce("laplace", *words)[0] == 2
    code, out, errors = reproduce("laplace", *words, "--overwrite", "--json")
    assert code == 0
    assert all(line.startswith("warning: ") for line in errors.splitlines())
    assert json.loads(out)["measured"]["ResNet-8"]["methods"].keys() == {
        "MAP",
        "temperature",
        "exact, k = 2",
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--preset shared", "pass --checkpoint FILE"),
        ("--preset shared --checkpoint there.pt", "no such checkpoint: there.pt"),
        ("--preset shared --checkpoint words.pt", "words.pt is no state dict of a ResNet"),
        ("--preset shared --checkpoint resnet5.pt", "where is cifar10? Pass --data DIR"),
        ("--preset shared --checkpoint resnet5.pt --data nowhere", "no such folder: nowhere"),
        ("--preset paper", "where is cifar10? Pass --data DIR"),
        ("--preset huge", "preset must be one of quick, shared, paper"),
        ("--preset quick --checkpoint resnet5.pt", "takes no --checkpoint"),
        ("--preset quick --data nowhere", "takes no --data"),
    ],
)
def test_reproduce_says_in_one_line_what_is_wrong(reproduce, monkeypatch, tmp_path, words, says):
    monkeypatch.setattr(laplace, "plane_case", lambda *given: iter(()))  # nor is much work done
    checkpoint(tmp_path)
    (tmp_path / "words.pt").write_bytes(b"no weights at all")
    code, out, errors = reproduce("laplace", *words.split(), "-o", "run")
    assert (code, out) == (2, "")
    assert says in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert not list(tmp_path.glob("run/*"))


def test_a_folder_that_holds_a_result_is_refused_before_any_work(reproduce, monkeypatch, tmp_path):
    monkeypatch.setattr(laplace, "run", never)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/result.json").write_text("{}")
    code, out, errors = reproduce("laplace", "-o", "run")
    assert (code, out) == (2, "")
    assert "--overwrite" in errors
    assert (tmp_path / "run/result.json").read_text() == "{}"
