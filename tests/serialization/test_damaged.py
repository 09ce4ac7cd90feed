"""A file that is damaged is refused by its name, in no time, or gives what was saved."""

import json
import random
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from damage import damaged
from files import POSTERIORS, SPECTRA, WEIGHTS, X, trained, values
from limits import within
from spoilt import of_header, of_tensors

from neuralef.kernels import RBF
from neuralef.serialization import read_tensors, write_tensors

FILES = 500  # of each kind
pytestmark = pytest.mark.filterwarnings("ignore")


def shares(kinds):
    return [pytest.param(kind, -(-FILES // len(kinds)), id=kind.id) for kind in kinds]


@lru_cache
def saved(kind):
    """A file, another one of its kind, and what the first one gives."""
    path = Path(tempfile.mkdtemp()) / "f"
    made = kind.make()
    made.save(path)
    return path.read_bytes(), values(made)


def judge(path, read, truth, same):
    """Whether a file was refused as promised; if not, it must give what was saved."""
    try:
        found = values(read(path))
    except ValueError as error:
        return str(path) in str(error) or pytest.fail(f"{error} does not name {path}")
    assert same(found, truth)
    return False


def refused(path, count, spoil, read, truth, same=torch.equal):
    """How many of so many spoilt files were refused."""
    total = 0
    for number in range(count):
        spoil(path, number)
        with within(megabytes=200, seconds=2):
            total += judge(path, read, truth, same)
    return total


@pytest.mark.parametrize(("kind", "count"), [*shares(SPECTRA), *shares(POSTERIORS + WEIGHTS)])
def test_damaged_bytes_are_refused_or_harmless(kind, count, tmp_path):
    chance, (good, truth) = np.random.default_rng(0), saved(kind)
    other = saved(SPECTRA[0] if kind in WEIGHTS else WEIGHTS[0])[0]  # sound, of another kind

    def spoil(path, number):
        path.write_bytes(damaged([good, good, other], number, chance))

    assert refused(tmp_path / "f", count, spoil, kind.read, truth) > 0.9 * count


@pytest.mark.parametrize(("kind", "count"), [*shares(SPECTRA), *shares(POSTERIORS)])
def test_spoilt_content_with_a_sound_checksum_is_refused_or_harmless(kind, count, tmp_path):
    chance, (good, truth) = random.Random(0), saved(kind)
    path = tmp_path / "f"
    path.write_bytes(good)
    header, tensors = read_tensors(path, kind.kind)

    def spoil(path, number):
        changed = header, of_tensors(tensors, chance)
        if number % 2:
            changed = of_header(header, chance), tensors
        write_tensors(path, kind.kind, *changed)

    def same(found, truth):  # known by the values at one point, to 1 %: elsewhere they are near
        return found.shape == truth.shape and (found - truth).abs().max() < 0.1 * truth.abs().max()

    assert refused(path, count, spoil, kind.read, truth, same) > 0.4 * count


def resumed(path):
    """The undisturbed run, or what goes on from a checkpoint."""
    try:
        return trained().solve(RBF().gram(X), checkpoint=path)
    except (FloatingPointError, ValueError) as error:  # of training, by spoilt numbers
        told = "" if "NaN or infinite" not in str(error) or str(path) in str(error) else f"{path}: "
        raise ValueError(f"{told}{error}") from error


def stopped(path):
    trained().solve(RBF().gram(X), checkpoint=path, callback=lambda record: record["step"] == 3)
    return path.read_bytes()


@pytest.mark.parametrize("spoilt", ["bytes", "header", "tensors"])
def test_a_damaged_checkpoint_is_refused_or_harmless(spoilt, tmp_path):
    """A run goes on to what the undisturbed one gives, bit by bit, or names the file."""
    path, chance, numbers = tmp_path / "f", random.Random(0), np.random.default_rng(0)
    truth, good = values(resumed(tmp_path / "whole")), stopped(path)
    header, tensors = read_tensors(path, "checkpoint")
    count = FILES if spoilt == "bytes" else FILES // 4

    def spoil(path, number):
        if spoilt == "bytes":
            path.write_bytes(damaged([good, good, saved(SPECTRA[0])[0]], number, numbers))
        elif spoilt == "header":
            write_tensors(path, "checkpoint", of_header(header, chance), tensors)
        else:
            write_tensors(path, "checkpoint", header, of_tensors(tensors, chance))

    def same(found, truth):  # a sound checksum of other numbers is another run
        return torch.equal(found, truth) if spoilt == "bytes" else bool(found.isfinite().all())

    assert refused(path, count, spoil, resumed, truth, same) > 0.4 * count


FIT = "fit x.csv --k 2 --solver nystrom --lengthscale 1 -o run --json"
USES = {
    "result.json": "show run --json",
    "spectrum.safetensors": "transform run x.csv -o y.npy --json",
}


def test_a_damaged_folder_of_a_run_is_refused_or_harmless(neuralef, tmp_path):
    np.savetxt(tmp_path / "x.csv", X.numpy(), delimiter=",")
    assert neuralef(*FIT.split())[0] == 0
    goods = {name: (tmp_path / "run" / name).read_bytes() for name in USES}

    def used(name):
        (tmp_path / "y.npy").unlink(missing_ok=True)
        code, out, err = neuralef(*USES[name].split())
        shown = json.loads(out) if code == 0 else None
        return code, err, shown if name == "result.json" or code else np.load(tmp_path / "y.npy")

    truth, chance, total = {name: used(name)[2] for name in USES}, np.random.default_rng(0), 0
    for number in range(FILES):
        name = list(USES)[number // 8 % 2]
        path, good = tmp_path / "run" / name, goods[name]
        path.write_bytes(damaged([good, good, goods["result.json"]], number, chance))
        with within(megabytes=200, seconds=2):
            code, err, found = used(name)
        path.write_bytes(good)
        if code == 0:
            assert np.array_equal(found, truth[name])
        else:
            assert code == 2
            assert err.startswith("error: ")
            assert err.count("\n") == 1
            assert name in err
            total += 1
    assert total > 0.8 * FILES
