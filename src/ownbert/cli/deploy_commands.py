"""Commands that export, serve and share a model: export, quantize, convert, push, serve."""

import os
from pathlib import Path
from typing import Any

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.cli.command import RecipeOptions, argument
from ownbert.exceptions import InputError
from ownbert.language.messages import Message
from ownbert.serve.server_settings import LIMITS, ServeSettings
from ownbert.settings import changed, resolve, setting
from ownbert.terminal import say


class ExportCommand(o.Quiet):
    """Export a model for use without ownbert, and compare the result with the model.

    Any head can be exported, for any number and length of texts. The folder also gets
    config.json, the tokenizer, and a model card with the largest difference and the lowest
    cosine similarity. Sentence embedding models get the files that sentence-transformers
    expects. Requires pip install 'ownbert\\[onnx]' or 'ownbert\\[openvino]'; torch requires
    nothing else.

    Example: ownbert export runs/clf --to onnx -o runs/clf-onnx

    Example: ownbert export runs/clf test.csv --to openvino -o runs/clf-openvino
    """

    folder: Path = o.MODEL_FOLDER
    data: Path | None = argument(
        None,
        "File with texts, or with the rows of the model's task as for predict; the exported file "
        "and the model are compared on the first 256.",
        "FILE",
        shown="texts included in ownbert",
    )
    output: Path | None = setting(
        None,
        "Folder for the file.",
        required=Message("{-o} is needed: the folder for the exported file"),
    )
    to: str = setting("onnx", "onnx, openvino or torch (torch.export).")
    text_column: str | None = o.TEXT_COLUMN
    tolerance: float = setting(
        1e-3,
        "Largest allowed difference between outputs of the exported file and of the model, at most "
        "1; above it, nothing is written.",
        check=between(0, 1, "[]"),
    )
    overwrite: bool = o.OVERWRITE_FILES

    def run(self) -> None:
        from ownbert.exporting.export import export

        parity = export(**self.given("quiet"), say=o.warn)
        if not self.quiet:
            say(
                "largest difference {largest_difference:.2g}, lowest cosine {least_cosine:.6f}, "
                "on {texts:,} texts",
                *(parity.largest_difference, parity.least_cosine, parity.texts),
            )
            say("saved {output}", self.output)


class QuantizeCommand(o.Quiet):
    """Write a copy of a model with 8-bit matrices, which is smaller and, on most CPUs, faster.

    predict, evaluate, embed and serve accept the copy like any other folder; it cannot be
    trained. Predictions change slightly: the model card reports by how much, and the size of
    both models. Image and translation models cannot be quantized.

    Example: ownbert quantize runs/clf -o runs/clf-int8

    Example: ownbert quantize runs/clf new.csv -o runs/clf-int8
    """

    folder: Path = o.MODEL_FOLDER
    data: Path | None = argument(
        None,
        "File with texts, or with the rows of the model's task as for predict, like those that the "
        "model will read; the first 256 are used to measure activations and to compare both "
        "models.",
        "FILE",
        shown="texts included in ownbert",
    )
    output: Path | None = setting(
        None,
        "Folder for the copy.",
        required=Message("{-o} is needed: the folder for the quantized model"),
    )
    text_column: str | None = o.TEXT_COLUMN
    overwrite: bool = o.OVERWRITE_FILES

    def run(self) -> None:
        from ownbert.exporting.quantize import quantize

        parity = quantize(**self.given("quiet"), say=o.warn)
        if self.quiet:
            return
        say(
            "lowest cosine {least_cosine:.4f}, mean {mean_cosine:.4f}, on {texts:,} texts",
            *(parity.least_cosine, parity.mean_cosine, parity.texts),
        )
        for kind, head in parity.heads.items():
            if (described := head.describe()) is not None:
                say(f"{kind}: {described}")
        sizes = [f"{size / 1e6:,.1f}" for size in (parity.bytes_before, parity.bytes_after)]
        say("the weights have {sizes} MB instead of {sizes2}", sizes[1], sizes[0])
        say("saved {output}", self.output)


class ConvertCommand(o.Quiet):
    """Convert a TensorFlow checkpoint of google-research/bert to a model folder.

    TensorFlow is not required, and all checksums are verified. The state of the optimiser is
    left out.

    Example: ownbert convert uncased_L-12_H-768_A-12/bert_model.ckpt -o models/bert
    """

    checkpoint: Path = argument(
        ...,
        "bert_model.ckpt: the path of the files without .index and .data-..., or the folder that "
        "contains them.",
        "CKPT",
    )
    output: Path | None = changed(o.Training.output, help="New folder for the model.")
    config: Path | None = setting(
        None, "Configuration of the model.", shown="bert_config.json next to it"
    )
    vocabulary: Path | None = setting(
        None, "Vocabulary of the model.", option="--vocab", shown="vocab.txt next to it"
    )
    cased: bool | None = setting(
        None,
        "Whether the model is cased.",
        option="--cased/--uncased",
        shown="whether vocab.txt has capitals",
    )

    def run(self) -> None:
        from ownbert.checkpoint.google import convert
        from ownbert.files.folders import writing

        assert self.output is not None
        with writing(self.output):
            model = convert(**self.given("quiet"))
        if not self.quiet:
            count = sum(parameter.numel() for parameter in model.parameters())
            say(
                "{num_hidden_layers} layers, {count:,} parameters",
                model.config.num_hidden_layers,
                count,
            )
            say("saved {output}", self.output)


class PushCommand(o.Quiet):
    """Upload a finished folder to the Hugging Face hub: model, tokenizer, card, pictures.

    Uploads only files that are needed to use the model, and lists them first: no texts,
    recipes, logs, saved states or unknown files. Requires pip install 'ownbert\\[hub]' and a
    token (hf auth login, or HF_TOKEN).

    Example: ownbert push runs/clf my-name/topics
    """

    folder: Path = argument(..., "Folder of a finished model.")
    name: str = argument(..., "Name on the hub.", "ORG/NAME")
    private: bool = setting(False, "Make a new repository private.")
    message: str = setting("Upload by ownbert push", "Commit message.")
    with_texts: bool = setting(
        False, "Also upload the report of fit, which quotes texts from the rows."
    )
    dry_run: bool = setting(False, "Print the list of files and exit without uploading.")

    def run(self) -> None:
        from ownbert.exporting.push import push

        shown = None if self.quiet and not self.dry_run else say
        address = push(**self.given("quiet"), say=shown)
        if self.dry_run:
            say("nothing was uploaded")
        elif not self.quiet:
            say("saved {output}", address)


class ServeCommand(o.Quiet):
    """Serve models over HTTP, with the APIs of OpenAI, Hugging Face and
    text-embeddings-inference.

    Each task also has its own path (/v1/classify and so on; see /openapi.json), and / is a page
    for trying out the model. Requests from all clients are batched together. After SIGTERM, the
    server answers all accepted requests and exits. Each option can also be set by an
    environment variable, such as OWNBERT_PORT=9000.

    Example: ownbert serve runs/clf --port 9000

    Example: ownbert serve search=runs/minilm topics=runs/clf
    """

    keeps_memory = True
    environment = "OWNBERT_"

    folders: list[str] = argument(
        ...,
        "Model folders, for any task, or indexes of ownbert search build; requests select one of "
        "several by name.",
        "FOLDER|NAME=FOLDER",
    )
    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all addresses.")
    port: int = setting(8080, "Port; 0 picks a free one.", check=between(0, 65_535, "[]"))
    key_file: Path | None = setting(
        None, "File with the API key; OWNBERT_API_KEY sets the key itself.", shown="none"
    )
    device: str = o.DEVICE
    precision: str = o.PRECISION
    engine: str | None = setting(None, "Engine, as for predict.", shown=False)
    max_memory: float | None = setting(
        None,
        "Maximum total size of all weights, in GB.",
        LIMITS,
        shown="none",
        check=between(0, limits.GIGABYTES, "[]"),
    )
    threshold: str | None = setting(None, "As for predict: yes=0.9.", shown=False)
    settings: Any = RecipeOptions(
        ServeSettings,
        (
            "batch_tokens",
            "queue_tokens",
            "request_tokens",
            "timeout",
            "connections",
            "idle_seconds",
        ),
        "serve",
    )

    def run(self) -> None:
        from ownbert.serve.server import read_key, serve

        key = os.environ.get("OWNBERT_API_KEY")
        if self.key_file is not None:
            if key is not None:
                raise InputError(
                    "OWNBERT_API_KEY and {--key-file} are both given; omit one of them"
                )
            key = read_key(self.key_file)
        limits = resolve(ServeSettings, options={**self.settings, "key": key})
        given = self.given("key_file", "settings", "quiet")
        serve(limits=limits, **given, log=not self.quiet)
