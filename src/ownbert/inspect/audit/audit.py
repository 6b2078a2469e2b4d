"""What a model remembers of its training texts: membership, canaries, rare tokens, copies."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.batches.masking import ordinary_tokens
from ownbert.corpus.documents import find_files
from ownbert.errors import InputError
from ownbert.files import read_json
from ownbert.folders import refuse_both as _  # noqa: F401
from ownbert.hub import model_folder
from ownbert.inference.abstaining.measures import auroc
from ownbert.inference.compute import Compute
from ownbert.inference.embedding.vector_files import as_inputs, records_of
from ownbert.inference.fill_mask import Filler
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import read_labelled_rows
from ownbert.inference.opened_blend import score_all
from ownbert.inference.scoring.score import ScoredText, Scorer
from ownbert.inference.scoring.surprisal import surprisals
from ownbert.inspect.audit.copies import copies
from ownbert.run.file_names import CANARIES
from ownbert.schema import list_of, record, whole
from ownbert.settings import between
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.task import NoTaskHead
