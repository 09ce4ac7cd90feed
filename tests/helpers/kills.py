"""Work that is done in processes of its own, which are killed, stopped or short of space.

A script, whose forks need not import torch anew: `python kills.py WORK FOLDER TIMES` prints what
became of them as JSON.
"""

import json
import mmap
import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import torch

import neuralef as nef
from neuralef import training
from neuralef.cli import main
from neuralef.kernels import RBF
from neuralef.networks import SharedMLP
from neuralef.report import read_result
from neuralef.serialization import read_tensors
from neuralef.solvers import trained

STEPS = 25
X = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
FIT = f"fit x.csv --k 3 --steps {STEPS} --batch-size 32 --lengthscale 1 -o".split()
ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
steps_done = mmap.mmap(-1, 8)  # shared with the forks


def count_steps():
    """Tell whoever forked us how many steps are done, and save as often as can be."""
    training.CHECKPOINT_SECONDS = 0.0
    record = trained._Run._record

    def counted(run):
        steps_done[:] = run.done.to_bytes(8, "little")
        return record(run)

    trained._Run._record = counted


def steps():
    return int.from_bytes(steps_done[:], "little")


def forked(work, *args):
    """The number of a process that does the work: 0 at its end, 9 on an error."""
    steps_done[:] = bytes(8)
    process = os.fork()
    if process:
        return process
    code = 9
    try:
        count_steps()
        code = work(*args) or 0
    except SystemExit as left:
        code = left.code or 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def ended(process):
    """Its exit code; negative, the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def struck(number, after, seconds, work, *args):
    """The exit code of work that a signal meets so long after so many steps, unless it is over."""
    process = forked(work, *args)
    while steps() < after and os.waitid(os.P_PID, process, ENDED) is None:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(process, number)
    return ended(process)


def solve(folder):
    gram = RBF().gram(X)
    spectrum = nef.NeuralEF(3, steps=STEPS, batch_size=32, progress=False).solve(
        gram, checkpoint=folder / "checkpoint"
    )
    spectrum.save(folder / "spectrum.safetensors")


def fit(folder):
    os.chdir(folder.parent)
    np.savetxt("x.csv", X.numpy(), delimiter=",")
    sys.argv = ["neuralef", *FIT, folder.name]
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        main()


WORKS = {"solve": (solve, "checkpoint"), "fit": (fit, "checkpoint.safetensors")}


def tensors_of(folder):
    return read_tensors(folder / "spectrum.safetensors", "spectrum")[1]


def readable(folder, checkpoint):
    """Read every file that is there by its own name, whole; returns the steps that are saved."""
    done = None
    if (folder / checkpoint).exists():
        done = read_tensors(folder / checkpoint, "checkpoint")[0]["done"]
    if (folder / "spectrum.safetensors").exists():
        tensors_of(folder)
    if (folder / "result.json").exists():
        read_result(folder)
    return done


def finished(folder, truth, name):
    """Let the work go on to its end: it must come to what the undisturbed one has."""
    work, checkpoint = WORKS[name]
    if name == "solve" or not (folder / "result.json").exists():
        assert ended(forked(work, folder)) == 0
    readable(folder, checkpoint)
    torch.testing.assert_close(tensors_of(folder), truth, rtol=0, atol=0, equal_nan=True)
    hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert hidden == [], f"left behind: {hidden}"


def undisturbed(name, folder):
    assert ended(forked(WORKS[name][0], folder)) == 0
    return tensors_of(folder)


def moment(chance):
    """Some steps and seconds: anywhere in the training, or in what is before and after it."""
    after = chance.choice([0, chance.randrange(STEPS), chance.randrange(STEPS), STEPS])
    return after, chance.choice([0, chance.uniform(0, 0.03), chance.uniform(0, 0.3)])


def killed(name, folder, times):
    """SIGKILL again and again, each run going on from what the last one left."""
    truth, chance, (work, checkpoint) = undisturbed(name, folder / "whole"), chances(), WORKS[name]
    kills = runs = partly = 0
    while kills < times:
        run = folder / f"run{runs}"
        for _ in range(chance.randrange(1, 9)):
            kills += struck(signal.SIGKILL, *moment(chance), work, run) == -9
            partly += run.exists() and 0 < (readable(run, checkpoint) or 0) < STEPS
        finished(run, truth, name)
        runs += 1
    return {"kills": kills, "partly": partly, "runs": runs}


def stopped(name, folder, times):
    """SIGTERM and Ctrl-C, again and again: all steps are saved."""
    truth, chance, (work, checkpoint) = undisturbed(name, folder / "whole"), chances(), WORKS[name]
    codes, partly, runs = [], 0, 0
    while len(codes) < times:
        run, saved = folder / f"run{runs}", 0
        while saved < STEPS - 5 and len(codes) < times:
            sent = (signal.SIGTERM, signal.SIGINT)[len(codes) % 2]
            code = struck(sent, saved + chance.randrange(1, 8), chance.uniform(0, 0.01), work, run)
            done, saved = steps(), (readable(run, checkpoint) if run.exists() else 0) or 0
            if code == 0:  # the work was over before the signal came
                break
            assert saved == done or done == 0, f"{done} steps done, {saved} saved"
            codes.append(code)
            partly += 0 < saved < STEPS
        finished(run, truth, name)
        runs += 1
    return {"codes": codes, "partly": partly}


def saved(name, folder, times):
    """SIGKILL while two spectra are saved in turns under one name."""
    gram, path, chance = RBF().gram(X), folder / "spectrum.safetensors", chances()
    networks = [SharedMLP(2, 4, 256, seed=seed) for seed in (0, 1)]
    spectra = [nef.NeuralEF(3, steps=2).solve(gram, network) for network in networks]
    for spectrum in spectra:
        spectrum.save(path)
    truths, found = [spectrum(X) for spectrum in spectra], []

    def save_on(_):
        while True:
            for spectrum in spectra:
                spectrum.save(path)

    for _ in range(times):
        assert struck(signal.SIGKILL, 0, chance.uniform(0.005, 0.1), save_on, None) == -9
        values = nef.load(path)(X)
        found.append([torch.equal(values, truth) for truth in truths].index(True))
    spectra[0].save(path)
    return {"kills": times, "both": len(set(found)) == 2, "left": os.listdir(folder)}


def full(name, folder, times):
    """A megabyte where more is needed, of a "disk" or of a "file": the result is in hand."""
    folder.mkdir(exist_ok=True)
    path, gram = folder / "spectrum.safetensors", RBF().gram(X)
    small = nef.NeuralEF(3, steps=2).solve(gram)
    small.save(path)
    before = path.read_bytes()
    told, error = folder.parent / "told", folder.parent / "error"

    def work(_):
        if name == "file":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            network = SharedMLP(2, 9, 512, seed=0)
            large = nef.NeuralEF(3, steps=4).solve(gram, network, checkpoint=folder / "c")
        assert large(X).isfinite().all()
        told.write_text("\n".join(str(each.message) for each in caught))
        try:
            large.save(path)
        except OSError as refused:
            error.write_text(str(refused))

    assert ended(forked(work, None)) == 0
    assert path.read_bytes() == before
    left = sorted(os.listdir(folder))
    return {"warned": told.read_text(), "error": error.read_text(), "left": left}


def chances():
    return random.Random(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, folder, times = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    how, _, what = name.partition(" ")
    does = {"killed": killed, "stopped": stopped, "saved": saved, "full": full}[how]
    print(json.dumps(does(what, folder, times)))
