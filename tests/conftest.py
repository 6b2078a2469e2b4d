"""Fixtures of the whole test suite."""

import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.plots import matplotlib_installed, matplotlib_missing
from support.shared import made_once

# Models of the tests are too small to gain from a second thread, and where something else runs on
# the machine, two threads that wait for each other take many times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests with two threads: they wait for each other as in the commands, not a hundred times as long.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
# Models are exported a fifth faster without a cache that hardly knows any of their operations.
os.environ.setdefault("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "0")
# While tests are collected: Transformers has parts of ModernBERT compiled, which no test runs, and
# would import a compiler for that, for more than a second in each process.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
# Help and messages are compared in English, whatever the locale of the machine.
os.environ["OWNBERT_LANGUAGE"] = "en"
# On a busy machine drawing an example, or a test of it, may take any time.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


# What imports and the list of tests make stays: it need not be searched for garbage, which would
# take a quarter of the time of collecting. Later garbage is searched for a tenth as often as Python
# does, which would take a twentieth of the time of the tests.
gc.disable()


def pytest_collection_finish() -> None:
    os.environ.pop("TORCHDYNAMO_DISABLE", None)
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest would search all that is left five times, and Python once more


@pytest.fixture(scope="session", autouse=True)
def no_flushes() -> Iterator[None]:
    """Files are not flushed to the disk: only a power failure would show it, and waiting for the
    disk takes a quarter of the time of tests that write models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_plots() -> Iterator[None]:
    """Tests run as where matplotlib is not installed, unless they ask for ``plots``."""
    with matplotlib_missing():
        yield


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The library; it is missing where other versions of the dependencies are tested."""
    return pytest.importorskip("transformers")


@pytest.fixture
def plots() -> Iterator[None]:
    """matplotlib is installed; fixtures of a wider scope say ``with matplotlib_installed()``."""
    with matplotlib_installed():
        yield


@pytest.fixture(scope="session", autouse=True)
def seeds_of_the_processor() -> Iterator[None]:
    """``torch.manual_seed`` seeds the processor alone where there is no other device: for each kind
    of device it would keep the seed with a trace of the call, which takes most of its time."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.xpu):
            if not kind.is_available():
                patch.setattr(kind, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def narrow_networks(request: pytest.FixtureRequest) -> Iterator[tuple[int, int, int]]:
    """In quick tests networks of the size tiny have half the width: they train in half the time.
    A run with slow tests has the published size, as have tests that ask for ``published_sizes``."""
    from ownbert.config.encoder import SIZES

    published = SIZES["tiny"]
    with pytest.MonkeyPatch.context() as patch:
        if not any(item.get_closest_marker("slow") for item in request.session.items):
            patch.setitem(SIZES, "tiny", (2, 64, 2))
        yield published


@pytest.fixture
def published_sizes(narrow_networks: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of the size tiny are as wide as that of google-research/bert."""
    from ownbert.config.encoder import SIZES

    monkeypatch.setitem(SIZES, "tiny", narrow_networks)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The data that several checkouts share, in a folder beside the repository."""
    folder = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the shared data folder (../shared/data), which is not here")
    return folder.resolve()


@pytest.fixture
def whole_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO sees the whole processor: its oneDNN reads the limit that ``make test-isa`` sets
    and crashes under that of AVX2 on a processor with AVX-512. PyTorch keeps the limit."""
    import torch

    torch.ops.mkldnn._reorder_linear_weight(torch.ones(32, 32))  # its oneDNN has read it now
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)


TOPICS = ("red", "green", "blue")


def topic_text(rng: random.Random, topic: str, sentences: int) -> str:
    """Words of one topic and common ones; every sentence ends with the token 9."""
    words = []
    for _ in range(sentences):
        for _ in range(rng.randint(3, 8)):
            own = rng.random() < 0.5
            words.append(f"{topic}{rng.randint(0, 11)}" if own else f"w{rng.randint(0, 30)}")
        words.append("9")
    return " ".join(words)


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpus.txt, train.csv, dev.csv and test.csv of three easy classes, a token
    store ``tokens`` and a vocabulary ``vocab`` (made by the library itself)."""
    return made_once(tmp_path_factory, "topics", _make_topics)


def _make_topics(folder: Path) -> None:
    from ownbert import learn_vocabulary, prepare

    rng = random.Random(7)
    texts = [topic_text(rng, TOPICS[i % 3], rng.randint(1, 6)) for i in range(240)]
    (folder / "corpus.txt").write_text("\n".join(texts) + "\n")
    for name, rows in (("train", 60), ("dev", 30), ("test", 45)):
        lines = ["label,text"]
        for i in range(rows):
            topic = TOPICS[i % 3]
            lines.append(f"{topic},{topic_text(rng, topic, rng.randint(1, 4))}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    learn_vocabulary(folder / "corpus.txt", folder / "vocab", kind="blank")
    prepare(folder / "corpus.txt", folder / "tokens", tokenizer=folder / "vocab")


@pytest.fixture(scope="session")
def pretrained(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with both of BERT's heads, and so a pooler, pretrained on ``topics`` for 60
    steps; do not write into it."""
    from ownbert import pretrain

    def make(folder: Path) -> None:
        options = {"objectives": "mlm,nsp", "max_steps": 60, "max_length": 48}
        options |= {"eval_every": 20, "quiet": True}
        with matplotlib_installed():
            pretrain(topics / "tokens", folder / "bert", **options)

    return made_once(tmp_path_factory, "pretrained", make) / "bert"


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny classifier, ``classifier``, and the same exported, ``onnx``; do not
    write into it."""

    def make(folder: Path) -> None:
        from support.cli import run_cli
        from support.tiny import made

        made(folder / "classifier", "classification", num_hidden_layers=1)
        done = run_cli("export", folder / "classifier", "-o", folder / "onnx")
        assert (done.returncode, done.stderr) == (0, "")
        assert "lowest cosine 1.000000, on 15 texts" in done.stdout

    return made_once(tmp_path_factory, "exported", make)


@pytest.fixture(scope="session")
def classifier(topics: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``pretrained`` fine-tuned on the training rows of ``topics``; do not write into it."""
    from ownbert import finetune

    def make(folder: Path) -> None:
        options = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True}
        with matplotlib_installed():
            finetune(model=pretrained, output=folder / "classifier", epochs=4, **options)

    return made_once(tmp_path_factory, "classifier", make) / "classifier"
