# SPDX-License-Identifier: Apache-2.0
"""What scripts get: JSON, CSV, exit statuses, and errors on the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hypervisor.top import batch as once
from hypervisor.top.command import main
from hypervisor.top.options import options_of
from limiter.errors import UsageError
from tests.top.nodes import FULL_NODE, NODE


def test_json_holds_everything() -> None:
    data = json.loads(once.as_json([FULL_NODE], at_s=1.5))
    assert (data["schema"], data["at_s"]) == (1, 1.5)
    (node,) = data["nodes"]
    assert (node["host"], node["health"]) == ("gpu-a1", "partial")
    card = node["cards"][0]
    assert (card["index"], card["utilization"], card["power_w"]) == (0, 0.76, 412.3)
    assert {t["name"] for t in card["tenants"]} == {"batch", "notebook", "research/train-0", "rogue"}
    assert node["cards"][2]["is_lost"] is True
    assert node["cards"][2]["utilization"] is None
    assert node["cards"][3]["vgpus"][0]["vm"].startswith("c2f0b6de")
    assert node["cards"][4]["migs"][1]["profile"] == "1g.10gb"
    assert data["totals"]["cards"] == 5


def test_csv_has_a_line_for_each_thing() -> None:
    rows = list(csv.DictReader(io.StringIO(once.as_csv([FULL_NODE]))))
    kinds = [row["kind"] for row in rows]
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert counts == {"node": 1, "gpu": 5, "tenant": 5, "vgpu": 2, "mig": 2, "process": 4}
    batch = next(row for row in rows if row["kind"] == "tenant" and row["name"] == "batch")
    assert (batch["share_achieved_ratio"], batch["share_entitled_ratio"]) == ("0.451", "0.6")
    lost = next(row for row in rows if row["state"] == "lost")
    assert lost["utilization_ratio"] == ""  # not known is not zero


def test_exit_statuses() -> None:
    down = replace(NODE, health="down", cards=())
    assert once.exit_status([NODE]) == 0
    assert once.exit_status([NODE, down]) == 3
    assert once.exit_status([FULL_NODE]) == 3
    assert once.exit_status([down]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--json"], "--once"),
        (["--once", "--json", "--csv"], "exclude"),
        (["--interval", "0"], "--interval"),
        (["--width", "3"], "--width"),
        (["--filter", "colour:red"], "colour"),
        (["--hosts", ""], "entry 1"),
        (["--hosts", "a,b:0"], "entry 2"),
        (["--hosts", "a\x1b[2J"], "entry 1"),
        (["--hostfile", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_use_names_what_and_where(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert "\x1b" not in shown


def test_a_hostfile_has_comments_and_names_each_host_once(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\na\nb:9000  # the old one\n\na:9402\n[::1]:9402\n")
    assert options_of(["--hostfile", str(path), "--hosts", "c"]).hosts == ("c", "a", "b:9000", "[::1]")
    path.write_text("a\nb c\n")
    with pytest.raises(UsageError, match="line 2"):
        options_of(["--hostfile", str(path)])


def test_no_terminal_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main([]) == 2
    assert "--once" in capsys.readouterr().err


WITHOUT_TEXTUAL = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("textual", "rich"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "textual" else real(name, package)
sys.stdin.isatty = sys.stdout.isatty = lambda: True
from hypervisor.top.command import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_textual_it_says_what_to_install_and_once_works(run_process, sim_env, tmp_path) -> None:
    env = sim_env | {"TERM": "xterm", "GPULIMIT_SOCKET": str(tmp_path / "none")}
    done = run_process([sys.executable, "-c", WITHOUT_TEXTUAL], env=env, expect=1)
    assert "pip install 'libgpulimit[top]'" in done.stderr
    assert "Traceback" not in done.stderr
    done = run_process([sys.executable, "-c", WITHOUT_TEXTUAL, "--once"], env=env, expect=3)
    assert "GPU 0" in done.stdout


def test_help_tells_exit_statuses(run_process) -> None:
    done = run_process([sys.executable, "-m", "limiter", "top", "--help"], env=dict(os.environ), expect=0)
    assert "exit status of --once: 0 everything was read; 1 nothing was read; 2 " in done.stdout
