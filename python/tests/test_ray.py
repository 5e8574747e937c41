"""gapless.ray without Ray, and the door to the placement that it uses. `cargo xtask test-fleet ray` has the rest, on a
real cluster."""

import json
import subprocess
import sys

import pytest

from conftest import ROOT
from gapless import GaplessError
from gapless._placing import Placing


def test_without_ray_the_import_says_what_to_install():
    program = "import sys; sys.modules['ray'] = None\ntry:\n    import gapless.ray\nexcept ImportError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "gapless.ray needs Ray" in done.stdout and "pip install ray" in done.stdout, done.stdout + done.stderr


def test_the_placement_answers_and_its_errors_are_ours(command):
    placing = Placing(command)
    node = {"name": "a", "cpus": 8, "memory": 1 << 36, "gpus": 1, "gpu_memory": 80 << 30}
    assert placing.ask("node", node=node) == {"ok": True, "placed": []}
    pod = {"name": "p", "gpus": 1, "gpu_memory": 18 << 30}
    assert placing.ask("ask", pod=pod)["place"] == {"id": "p", "node": "a", "gpus": [0], "units": 18 << 30}
    with pytest.raises(GaplessError, match="invalid pod"):
        placing.ask("ask", pod={**pod, "gpu_memory": "lots"})
    with pytest.raises(GaplessError, match="unknown variant"):
        placing.ask("dance")
    assert json.dumps(placing.ask("state")["pods"]) == "1"
    placing.close()
    with pytest.raises(GaplessError, match="ended"):
        placing.ask("state")


def test_a_placement_that_is_killed_is_started_again_with_what_it_knew(command):
    placing = Placing(command)
    for name in ("a", "b", "gone"):
        placing.ask("node", node={"name": name, "cpus": 8, "memory": 1 << 36, "gpus": 1, "gpu_memory": 80 << 30})
    pod = {"gpus": 1, "gpu_memory": 50 << 30}
    placed = {name: placing.ask("ask", pod={**pod, "name": name})["place"] for name in ("p", "q", "r")}
    placing.ask("close", node=placed["r"]["node"])
    placing.ask("free", id="r")
    assert "waits" in placing.ask("ask", pod={**pod, "name": "late"})
    before = placing.ask("state")
    for _ in range(2):
        placing._process.kill()
        assert placing.ask("state") == before
        placing.ask("check")
        assert {name: placing.ask("find", id=name)["place"] for name in ("p", "q")} == {name: placed[name] for name in ("p", "q")}
        # A request that was on its way when the process ended is made once.
        placing._process.kill()
        assert "waits" in placing.ask("ask", pod={**pod, "name": "late"})
    placing._process.kill()
    assert [place["id"] for place in placing.ask("free", id="p")["placed"]] == ["late"]
    assert placing.late() == []
    placing._process.kill()
    assert placing.ask("state")["pods"] == 2
    placing.close()


def test_a_program_that_is_no_program_is_told(tmp_path):
    broken = tmp_path / "gapless"
    broken.write_text("not a program")
    with pytest.raises(GaplessError, match="cannot be started"):
        Placing(str(broken))
