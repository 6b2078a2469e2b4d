"""Files that tests of ``fit`` read."""

import csv
import json
import shutil
from pathlib import Path


def texts_of(path: Path) -> list[str]:
    with open(path, newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def sentence_model(pretrained: Path, folder: Path) -> Path:
    """A copy whose text vectors are means."""
    shutil.copytree(pretrained, folder)
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder
