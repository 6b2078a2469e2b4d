"""What decides by the clock reads it through ``ownbert.time_limit``, so that ``fit --replay`` can
repeat it."""

import re

from support.source_code import SOURCE

# What fit runs.
PARTS = [
    "batches",
    "corpus",
    "finetuning",
    "fitting",
    "inference",
    "nn",
    "pretraining",
    "run",
    "tasks",
    "train",
    "views",
]
READINGS = re.compile(r"\btime\.(monotonic|perf_counter|process_time|time)\b")
OTHERS = {
    "fitting/fit.py": "the start, which is recorded",
    "fitting/fit_state.py": "the start, which is recorded",
    "fitting/progress.py": "the seconds that are displayed",
    "train/meter.py": "the speed of the machine, for the log",
    "train/display.py": "the time left that is displayed",
}


def test_nothing_else_reads_the_clock():
    found = {
        path.relative_to(SOURCE).as_posix()
        for part in PARTS
        for path in (SOURCE / part).rglob("*.py")
        if any(
            READINGS.search(line.partition("#")[0])
            for line in path.read_text("utf-8").splitlines()
            if "``" not in line
        )
    }
    assert found == OTHERS.keys()
