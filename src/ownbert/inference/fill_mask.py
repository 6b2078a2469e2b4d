"""Fill-mask: the tokens that a masked language model predicts for masks in a text."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.batches.example import Example, batches_by_tokens
from ownbert.checkpoint import Description, describe, load_tokenizer
from ownbert.exceptions import InputError
from ownbert.hub import model_folder
from ownbert.inference.engines import Compute, choose_engine
from ownbert.inference.exported_network import LOGITS, MASKS_OF_BOTH, network_of
from ownbert.nn.default_dtype import in_float32
from ownbert.run.file_names import GENERATOR
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.device import pick_device

# Spellings of a mask that users may write with any tokenizer.
_SPELLINGS = ("[MASK]", "<mask>")
# Texts and tokens per forward pass: each mask has logits for the whole vocabulary.
_TEXTS, _BATCH_TOKENS = 32, 2048
# Maximum tokens with an exported file, which computes logits for every token.
_ENGINE_TOKENS = 512
# Word-start markers of byte-level BPE and SentencePiece.
_WORD_START = ("Ġ", "▁")


@dataclass(frozen=True)
class Candidate:
    """A candidate token for a mask: ``text`` is the token without markers, and ``joined``
    whether it continues the previous word."""

    token: str
    id: int
    probability: float
    text: str
    joined: bool


@dataclass(frozen=True)
class Mask:
    """A mask in a text, with its candidates, most probable first; ``position`` is the index of
    the mask token, and the first special token has index 0."""

    position: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Filled:
    """A text, its masks in order, and the text with each mask's most probable candidate."""

    text: str
    masks: tuple[Mask, ...]
    filled: str

    def as_json(self) -> dict[str, Any]:
        """As nested dictionaries."""
        return asdict(self)


class Filler:
    """A model folder with an MLM head that fills masks.

    Args:
        folder: model folder, or its description.
        top: number of candidates per mask.
        device: auto, cpu or cuda.
        engine: torch, onnx, openvino or auto (``choose_engine``), whose choice is the attribute.
    """

    def __init__(
        self,
        folder: str | Path | Description,
        *,
        top: int = 5,
        device: str = "auto",
        engine: str | None = None,
    ) -> None:
        if top < 1:
            raise InputError("top is {top}; it must be 1 or more", top)
        if not isinstance(folder, Description):
            folder = model_folder(folder)
            if not folder.is_dir():
                raise InputError("no such folder: {folder}", folder)
        description = _with_mlm_head(describe(folder))
        where = description.folder
        head = next((spec for spec in description.specs if spec.kind == "mlm"), None)
        if head is None and where is not None and (where / GENERATOR).is_dir():
            raise InputError(
                "{where} is the discriminator of an ELECTRA, which predicts no words; use its "
                "generator, {where2}",
                where,
                where / GENERATOR,
            )
        if head is None:
            raise InputError(
                "{where} is a {architecture}, which has no masked-language-model head; use a "
                "folder written by ownbert pretrain",
                where,
                description.architecture,
            )
        if head.features is not None:
            raise InputError(
                "{where} predicts masked words from text and word features, but fill reads only "
                "texts; fine-tune it with {--feature-columns}",
                where,
            )
        if description.config.is_decoder:
            raise InputError(
                "{where} is a decoder, which reads only from left to right; filling masks needs "
                "a model that sees both sides (is_decoder false)",
                where,
            )
        alone = [spec.kind for spec in description.specs] == ["mlm"]
        output = LOGITS if alone else MASKS_OF_BOTH
        self.engine = choose_engine(description, Compute(device, engine=engine), (output,))
        self.tokenizer = load_tokenizer(description)
        packed = partial(_packed, description, device)
        self._network = network_of(self.engine, description.config, packed, masks=output)
        self.top = min(top, self.tokenizer.vocab_size)
        self.longest = description.config.max_length
        # The mask token, and spellings of a mask that are not tokens.
        others = [w for w in _SPELLINGS if w != self.mask and self.tokenizer.id_of(w) is None]
        self.spelling = re.compile("|".join(map(re.escape, (self.mask, *others))))

    @property
    def mask(self) -> str:
        """The tokenizer's mask token."""
        return self.tokenizer.special["mask_token"]

    def __call__(
        self,
        texts: Iterable[str],
        *,
        targets: Sequence[int] | None = None,
        top: int | None = None,
        where: Callable[[int], str] = "text {}".format,
    ) -> Iterator[Filled]:
        """Fill the masks of each text, in order.

        Args:
            texts: texts with masks.
            targets: ids of the candidates; by default all tokens.
            top: number of candidates per mask; by default the filler's.
            where: names a text in messages by its number from 1.

        Raises:
            InputError: a text has no mask or is too long for the model; the message names it.
        """
        count, texts = 0, iter(texts)
        while block := list(islice(texts, _TEXTS)):
            ids = self._encode(block, count, where)
            count += len(block)
            lengths = [len(i) for i in ids]
            most = _BATCH_TOKENS if self.engine.packed else _ENGINE_TOKENS
            for chosen in batches_by_tokens(np.arange(len(ids)), lengths, most):
                rows = [block[i] for i in chosen], [ids[i] for i in chosen]
                yield from self._fill(*rows, targets, top or self.top)

    def with_masks(self, text: str) -> str:
        """The text with its masks spelled as the tokenizer's mask token."""
        if not isinstance(text, str):
            raise InputError("a text is needed, not {kind}", type(text).__name__)
        # Pre-tokenised text is split only at spaces, so a mask needs spaces around it.
        mask = f" {self.mask} " if self.tokenizer.kind == "blank" else self.mask
        return self.spelling.sub(lambda _: mask, text)

    def surprisals(self, examples: Sequence[Example]) -> np.ndarray:
        """Surprisals -ln p of the masked tokens of examples: float32 (M)."""
        return self._network.surprisals(examples)

    def _encode(
        self, texts: Sequence[str], before: int, where: Callable[[int], str]
    ) -> list[np.ndarray]:
        """The ids of each text with special tokens; ``before`` is the number of preceding texts."""
        masked = [self.with_masks(text) for text in texts]
        rows = []
        for number, piece in enumerate(self.tokenizer.encode_batch(masked), before + 1):
            row = np.asarray(self.tokenizer.input_format.one(piece), dtype=np.int64)
            if self.tokenizer.mask_id not in piece:
                text = texts[number - before - 1]
                shown = text if len(text) <= 40 else f"{text[:37]}..."
                raise InputError(
                    "{where} has no mask: {texts!r}; write {mask} for each token to predict",
                    *(where(number), shown, self.mask),
                )
            if self.longest is not None and len(row) > self.longest:
                raise InputError(
                    "{where} has {count:,} tokens with the special ones; the model takes at "
                    "most {longest:,}; shorten it",
                    where(number),
                    len(row),
                    self.longest,
                )
            rows.append(row)
        return rows

    def _fill(
        self,
        texts: Sequence[str],
        ids: Sequence[np.ndarray],
        targets: Sequence[int] | None,
        top: int,
    ) -> Iterator[Filled]:
        examples = [masked_example(row, self.tokenizer) for row in ids]
        # A model may have more outputs than the tokenizer has tokens.
        known = np.arange(self.tokenizer.vocab_size) if targets is None else np.asarray(targets)
        values, indices = self._network.likeliest(examples, known, top)
        rows = zip(values.tolist(), indices.tolist(), strict=True)
        for text, example in zip(texts, examples, strict=True):
            assert example.masked_positions is not None
            masks = []
            for position in example.masked_positions.tolist():
                candidates = [self._candidate(i, p) for p, i in zip(*next(rows), strict=True)]
                masks.append(Mask(position, tuple(candidates)))
            best_of_each = [mask.candidates[0] for mask in masks]
            yield Filled(text, tuple(masks), self._fill_in(text, best_of_each))

    def _candidate(self, index: int, probability: float) -> Candidate:
        token, kind = self.tokenizer.tokens([index])[0], self.tokenizer.kind
        if kind == "wordpiece":
            joined = token.startswith("##") and len(token) > 2
            return Candidate(token, index, probability, token[2:] if joined else token, joined)
        if kind == "blank" or index in self.tokenizer.special_ids:
            return Candidate(token, index, probability, token, False)
        text = self.tokenizer.decode([index]).strip() or token
        return Candidate(token, index, probability, text, not token.startswith(_WORD_START))

    def replaced(self, text: str, number: int, candidate: Candidate) -> str:
        """The text with a candidate in place of mask ``number`` (from 0)."""
        masks = self.spelling.findall(text)
        chosen = [Candidate(mask, -1, 0.0, mask, False) for mask in masks]
        chosen[number : number + 1] = [candidate]
        return self._fill_in(text, chosen)

    def _fill_in(self, text: str, chosen: Sequence[Candidate]) -> str:
        """The text with one candidate for each mask."""
        pieces = self.spelling.split(text)
        if len(pieces) != len(chosen) + 1:  # the tokenizer found a mask with another spelling
            return text
        filled = pieces[0]
        for best, piece in zip(chosen, pieces[1:], strict=True):
            if self.tokenizer.kind == "blank":
                parts = filled.rstrip(), best.text, piece.lstrip()
                filled = " ".join(part for part in parts if part)
            else:
                filled = (filled.rstrip() if best.joined else filled) + best.text + piece
        return filled


@in_float32
def fill(
    folder: str | Path,
    texts: str | Iterable[str],
    *,
    top: int = 5,
    device: str = "auto",
    engine: str | None = None,
) -> list[Filled]:
    """Predict the most probable tokens for each mask of each text.

    Several masks in a text are filled independently, with the others masked.

    Args:
        folder: folder of a model with an MLM head.
        texts: one or several texts; a mask is the tokenizer's mask token, [MASK] or <mask>.
        top: number of candidates per mask.
        device: auto, cpu or cuda.
        engine: torch, onnx, openvino or auto.

    Raises:
        InputError: see ``Filler``.
    """
    filler = Filler(folder, top=top, device=device, engine=engine)
    if not isinstance(texts, str | Iterable):
        raise InputError("a text is needed, not {kind}", type(texts).__name__)
    return list(filler([texts] if isinstance(texts, str) else texts))


def masked_example(ids: Sequence[int] | np.ndarray, tokenizer: Tokenizer) -> Example:
    """A text, with special tokens, whose masks are to be predicted."""
    row = np.asarray(ids, dtype=np.int64)
    positions = np.flatnonzero(row == tokenizer.mask_id)
    types = np.asarray(tokenizer.input_format.types(len(row)), dtype=np.int64)
    return Example(
        row, types, masked_positions=positions, masked_ids=row[positions], order=0 * positions
    )


def _packed(description: Description, device: str) -> Any:
    from ownbert.checkpoint import load
    from ownbert.tasks.packed_network import PackedNetwork

    return PackedNetwork(load(description, heads=["mlm"]).to(pick_device(device)))


def _with_mlm_head(description: Description) -> Description:
    """The description with an MLM head if the folder names no architecture; loading it will tell
    whether the head exists."""
    folder = description.folder
    if folder is None or description.values.get("architectures"):
        return description
    for name, architecture in description.family.architectures.items():
        kinds = [spec.kind for spec in architecture.heads]
        if kinds == ["mlm"] and not architecture.decoder:
            return describe(folder, values={**description.values, "architectures": [name]})
    return description
