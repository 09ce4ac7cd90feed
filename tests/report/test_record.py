"""What a run leaves behind is read back, or refused in a sentence."""

import json
import time

import pytest
import torch

import neuralef as nef
from neuralef.report import KEYS, read_result, timed, write_result


def test_a_result_is_read_back_with_what_made_it(tmp_path):
    written = write_result(
        tmp_path, "fit", config={"k": 2}, measured={"rank": 2}, preset="quick", extra=[1]
    )
    read = read_result(tmp_path)
    assert read == json.loads(json.dumps(written))
    assert set(read) == KEYS | {"extra"}
    assert (read["experiment"], read["preset"], read["extra"]) == ("fit", "quick", [1])
    made = read["environment"]
    assert (made["neuralef"], made["torch"]) == (nef.__version__, torch.__version__)
    assert (made["device"], made["threads"]) == ("cpu", torch.get_num_threads())


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "damaged"), ("[]", "lacks"), ("3", "damaged"), ('{"measured": {}}', "lacks config")],
)
def test_what_is_no_result_is_refused(tmp_path, text, says):
    with pytest.raises(FileNotFoundError, match="is it the folder of a run"):
        read_result(tmp_path)
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ValueError, match=rf"result\.json is damaged .*{says}|{says}"):
        read_result(tmp_path)


def test_work_is_timed_and_its_result_kept():
    found, seconds = timed(lambda pause: time.sleep(pause) or "done", 0.05)
    assert found == "done"
    assert 0.05 <= seconds < 5
