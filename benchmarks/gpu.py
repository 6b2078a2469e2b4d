"""Everything that OwnBERT has for a GPU, in one command: is it right, and how fast is it?

    python benchmarks/gpu.py [--minutes 25] [--sections parity resume ...] [--json gpu.json]
        [--rounds 5] [--device cuda] [--small]

Sections, each in a process of its own, so that one that fails (or breaks the GPU's context) leaves
the others alone. What is not installed or not possible here is left out with a line that says why.

- parity: each attention backend against ``reference`` in float64 on the same inputs, in float32,
  bfloat16 and float16, in value and gradient; a model against Transformers.
- resume: runs of ``ownbert pretrain`` that are killed (SIGKILL) and resumed equal one that was not,
  bit for bit, with PyTorch's deterministic algorithms.
- ddp: torchrun with one process, DistributedDataParallel and fully_shard equal the plain step.
- steps: training steps beside Transformers (SDPA, and FlashAttention where flash_attn is
  installed), mixed lengths and full ones, in turns.
- base: base at 128 and 512 tokens: tokens per second and model FLOPs utilisation (MFU).
- encode: vectors of texts beside Transformers, in turns.
- loop: ``ownbert pretrain`` itself, and how many tokens its loader alone can deliver.
- graphs: the same step in a CUDA graph and with torch.compile: does it pay?

Operations of a step (``train/meter.py``): 6 per weight of the blocks' matrices and token, 12 x
layers x width x length per token for attention, and 6 per weight of the MLM head and masked token.
Embeddings, padding, and what is computed twice do not count. MFU is that per second over the peak
of the device's data sheet (``PEAKS``), or over the largest measured matrix product where it has
none; the share of the measured one is printed too.

Aims, judged on a GPU alone:

- MFU of at least 50 % in bfloat16 with base at 512 tokens, on a device of the H200's class;
- at least 2 times as many tokens per second as Transformers with SDPA on mixed lengths (16 to 128),
  in training and in encoding.

A figure that falls short, a check that fails, and a section that did not end are named in the last
lines, and the exit code is 1. ``--json`` is written after each section. ``--device cpu --small``
tests the command itself; aims are not judged then.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_report import Report, table

# The most minutes of each, in the order in which they run.
SECTIONS = {
    "parity": 3.0,
    "ddp": 3.0,
    "resume": 5.0,
    "base": 3.0,
    "steps": 5.0,
    "encode": 4.0,
    "loop": 3.0,
    "graphs": 5.0,
}
# In these equal runs must be equal to the last bit; read when cuBLAS is loaded.
DETERMINISTIC = {"resume", "ddp"}
CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    if given.child:
        run_section(given, given.child, given.part)
        return 0
    start, sections = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.sections:
            left = 60 * given.minutes - (time.monotonic() - start)
            print(f"\n## {name}\n", flush=True)
            part = Path(folder) / f"{name}.json"
            if left < 20 and not given.one_process:
                sections[name] = Report().as_dict() | {"status": "not started: no time was left"}
            elif given.one_process:
                os.environ.update(CUBLAS)
                run_section(given, name, part)
                sections[name] = json.loads(part.read_text())
            else:
                sections[name] = in_a_process(given, name, part, min(left, 60 * SECTIONS[name]))
            for line in table(sections[name]["rows"]):
                print(line, flush=True)
            if given.json:
                results = {"settings": settings(given), "sections": sections}
                given.json.write_text(json.dumps(results, indent=1) + "\n")
    return conclude(sections)


def conclude(sections: dict[str, Any]) -> int:
    """Print what falls short; the exit code."""
    lines = []
    for name, section in sections.items():
        if section["status"] != "done":
            lines.append(f"{name}: {section['status']}")
        lines += [f"{name}: {line}" for line in section["shortfalls"]]
    print("\n## Summary\n")
    for line in lines:
        print(f"FALLS SHORT: {line}")
    print(f"{len(lines)} of the checks and figures fall short" if lines else "nothing falls short")
    return 1 if lines else 0


def in_a_process(given: argparse.Namespace, name: str, part: Path, seconds: float) -> dict:
    """The report of a section that has a process of its own; what it has if it does not end."""
    command = [sys.executable, __file__, *given.passed, "--child", name, "--part", str(part)]
    command += ["--seconds", f"{seconds:.0f}"]
    environment = os.environ | (CUBLAS if name in DETERMINISTIC else {})
    status = "done"
    child = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        # What looks at the clock ends in time; this is for what hangs.
        if code := child.wait(seconds + 30):
            status = f"failed: exit code {code}"
    except subprocess.TimeoutExpired:
        status = f"failed: it did not end within {seconds + 30:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):  # with the runs that it has started
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    found = json.loads(part.read_text()) if part.exists() else Report().as_dict()
    if status != "done" and found["status"] in ("running", "done"):
        found["status"] = status
    return found


def run_section(given: argparse.Namespace, name: str, part: Path) -> None:
    """Run a section in this process, and write its report; an error ends it and is part of it."""
    report = Report(part, seconds=given.seconds)
    try:
        import gpu_checks
        import gpu_speed

        about = gpu_speed.Machine.here(given.device)
        report.note(str(about))
        work = {
            "parity": gpu_checks.parity,
            "resume": gpu_checks.resume,
            "ddp": gpu_checks.ddp,
            "steps": gpu_speed.steps,
            "base": gpu_speed.base,
            "encode": gpu_speed.encode,
            "graphs": gpu_speed.graphs,
            "loop": gpu_speed.loop,
        }
        work[name](report, about, given)
        report.end("done")
    except Exception as error:  # each section stands alone
        traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        report.end(f"failed: {type(error).__name__}: {first}")


def settings(given: argparse.Namespace) -> dict[str, Any]:
    return {name: str(v) if isinstance(v, Path) else v for name, v in vars(given).items()}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=25.0, help="of all sections together")
    names = list(SECTIONS)
    parser.add_argument("--sections", nargs="+", choices=names, default=names)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small models and texts, as for a CPU")
    parser.add_argument("--rounds", type=int, default=5, help="of what takes turns")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--one-process", action="store_true", help="sections share this process")
    parser.add_argument("--child", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=3600.0, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.passed = list(sys.argv[1:] if arguments is None else arguments)
    if given.minutes <= 0 or given.rounds < 1:
        parser.error("--minutes must be above 0 and --rounds at least 1")
    if given.child or given.device == "cpu":
        return given
    # Not in this process, which starts the others: one that has a context keeps memory.
    probe = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"
    if subprocess.run([sys.executable, "-c", probe]).returncode:
        parser.error("this machine has no GPU that PyTorch can use; --device cpu --small tests it")
    return given


if __name__ == "__main__":
    sys.exit(main())
