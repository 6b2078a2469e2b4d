"""benchmarks/gpu.py runs its sections on a CPU too, and says loudly what falls short."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import gpu
import gpu_speed
import torch
from gpu_report import Report, table

SMALL = ("--device", "cpu", "--small", "--rounds", "1")


def run(path: Path, *options: str) -> tuple[int, dict]:
    code = gpu.main([*SMALL, "--json", str(path), *options])
    return code, json.loads(path.read_text())["sections"]


@pytest.mark.slow
def test_backends_and_models_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, sections = run(tmp_path / "a.json", "--one-process", "--sections", "parity", "ddp")
    assert code == 0
    rows = sections["parity"]["rows"]
    backends = [row for row in rows if "backend" in row]
    assert len(backends) == 15  # five that a CPU has, in three number types
    assert all(0 < row["error_of_tolerance"] <= 1 for row in backends)
    wrapped = [row["wrapped"] for row in sections["ddp"]["rows"]]
    assert wrapped == ["DistributedDataParallel", "fully_shard"] * 2
    assert capsys.readouterr().out.splitlines()[-1] == "nothing falls short"


@pytest.mark.slow
def test_speeds_are_measured_and_not_judged_here(tmp_path: Path):
    code, sections = run(tmp_path / "a.json", "--one-process", "--sections", "base", "encode")
    assert code == 0
    assert [row["length"] for row in sections["base"]["rows"]] == [128, 512]
    assert all(0 < row["mfu"] < 1.5 for row in sections["base"]["rows"])
    libraries = [row["library"] for row in sections["encode"]["rows"]]
    assert [name.startswith("OwnBERT") for name in libraries] == [True, False, False, False]
    assert all(row["least_cosine"] > 0.99 for row in sections["encode"]["rows"])
    notes = sections["base"]["notes"] + sections["encode"]["notes"]
    assert sum("not judged on a CPU" in line for line in notes) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="it fails where there is no GPU")
def test_a_section_that_fails_says_why_in_its_report(tmp_path: Path):
    given = gpu.parse([*SMALL])
    given.device = "cuda"
    gpu.run_section(given, "base", tmp_path / "base.json")
    status = json.loads((tmp_path / "base.json").read_text())["status"]
    assert status.startswith("failed: ")
    assert "CUDA" in status or "NVIDIA" in status


def test_what_is_below_an_aim_is_named_on_a_gpu():
    device = gpu_speed.Machine(torch.device("cuda"), "NVIDIA H200", 989.4e12)
    report = Report()
    gpu_speed.judge(report, device, 0.43, 0.5, "MFU of base")
    gpu_speed.judge(report, device, 2.5, 2.0, "steps")
    assert report.shortfalls == ["MFU of base: 0.43, the aim is 0.5"]
    part = {"status": "done"} | {"shortfalls": report.shortfalls}
    assert gpu.conclude({"base": part}) == 1
    assert gpu.conclude({"base": part | {"shortfalls": []}}) == 0
    assert gpu.conclude({"base": {"status": "not started", "shortfalls": []}}) == 1


def test_the_table_has_a_head_for_each_kind_of_row():
    lines = table([{"a": 1.0, "b": 12_345}, {"a": 0.1234567, "b": 1}, {"c": True}])
    shown = ["", "| a | b |", "|---|---|", "| 1 | 12,345 |", "| 0.1235 | 1 |"]
    assert lines == [*shown, "", "| c |", "|---|", "| True |"]


@pytest.mark.slow
def test_every_section_ends_in_a_process_of_its_own(tmp_path: Path):
    code, sections = run(tmp_path / "a.json")
    assert code == 0
    assert list(sections) == list(gpu.SECTIONS)
    assert {section["status"] for section in sections.values()} == {"done"}
    resumed = sections["resume"]["rows"]
    assert all(row["kills"] and row["equal_to_the_last_bit"] for row in resumed)
    assert sections["ddp"]["rows"][-1]["run"] == "torchrun with one process"
