"""Runs that are killed, stopped or out of space: every file is whole, and what was done is kept."""

import json
import os
import resource
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
KILLS, STOPS = 50, 20


def became(work, folder, times=1):
    """What `kills.py` says of the work."""
    script = [sys.executable, str(ROOT / "tests/helpers/kills.py"), work, str(folder), str(times)]
    done = subprocess.run(
        script, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("work", ["solve", "fit"])
def test_killed_runs_go_on_to_what_the_undisturbed_one_gives(work, tmp_path):
    found = became(f"killed {work}", tmp_path, KILLS)
    assert found["kills"] >= KILLS
    assert found["partly"] >= KILLS // 4  # with some steps saved and some to go


@pytest.mark.parametrize(("work", "codes"), [("solve", {-15, 130}), ("fit", {143, 130})])
def test_ctrl_c_and_sigterm_lose_no_step(work, codes, tmp_path):
    found = became(f"stopped {work}", tmp_path, STOPS)
    assert set(found["codes"]) == codes
    assert found["partly"] >= STOPS // 2


def test_a_file_whose_writer_is_killed_is_the_old_or_the_new_one(tmp_path):
    found = became("saved", tmp_path, KILLS)
    assert found == {"kills": KILLS, "both": True, "left": ["spectrum.safetensors"]}


@pytest.fixture(params=["file", "disk"])
def megabyte(request, tmp_path):
    """What is limited to a megabyte, and a folder on it."""
    folder = tmp_path / "full"
    folder.mkdir()
    if request.param == "file":
        yield request.param, folder
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be made here")
    yield request.param, folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_result_in_hand_and_the_old_file_whole(megabyte):
    what, folder = megabyte
    found = became(f"full {what}", folder)
    assert "cannot write" in found["warned"]
    assert "the run goes on" in found["warned"]
    assert f"cannot write {folder / 'spectrum.safetensors'}: " in found["error"]
    assert found["left"] == ["spectrum.safetensors"]


def test_a_command_on_a_full_disk_shows_what_it_found_and_ends(megabyte, tmp_path):
    what, folder = megabyte
    np.savetxt(tmp_path / "x.csv", np.random.default_rng(0).normal(size=(80, 4)), delimiter=",")
    command = "from neuralef.cli import main; main()"
    words = "fit x.csv --solver random-features --features 40000 --k 3 --json -o full/run"
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    done = subprocess.run(
        [sys.executable, "-c", command, *words.split()], cwd=tmp_path,
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=limit if what == "file" else None,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write full/run/spectrum.safetensors: ")
    assert done.stderr.count("\n") == 1
    assert len(json.loads(done.stdout)["measured"]["eigenvalues"]) == 3
    assert list(folder.iterdir()) == []
