"""The sizes in a config.json beside the shapes of the tensors, compared before a model is built.

A config.json of others may state any size; a model of that size would be allocated and initialised
before its tensors could be found not to fit. The tables, both ends of the stack of blocks and the
outputs of the heads are compared here, which bounds the model by the size of its file.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from ownbert.checkpoint.copying import LoadReport, misshapen, require_fit
from ownbert.checkpoint.description import Description
from ownbert.config import EncoderConfig
from ownbert.families.rules import Rename, Reshape, Tie, holds
from ownbert.families.weight_map import MISSING, OWN_TENSOR, WeightMap

_BLOCK = "encoder.blocks.{i}."
_NUMBER = re.compile(r"\.blocks\.\d+\.")


def require_sizes(tensors: Mapping[str, Tensor], description: Description, path: Path) -> None:
    """Check that a file has tensors of the sizes that a config.json states.

    Args:
        tensors: of the file, by its names.
        description: of the config.json.
        path: of the file, for the message.

    Raises:
        InputError: a size differs; it names the tensor.
    """
    weight_map = description.weight_map
    wanted = _sizes(description.config)
    if description.decoder is not None:
        wanted |= _sizes_of_decoder(description.decoder)
    for spec in description.specs:
        if spec.kind in ("classification", "tokens"):
            wanted[f"heads.{spec.kind}.dense"] = (spec.output or len(description.labels),)
    problems = list(_problems(tensors, weight_map, wanted, description.config))
    for spec in description.specs:
        start = f"{OWN_TENSOR}heads.{spec.kind}.ngrams."
        tables = [t for name, t in tensors.items() if name.startswith(start) and t.ndim == 2]
        if spec.ngrams is not None and not any(len(table) == spec.ngrams for table in tables):
            problems.append(f"no tensor {start}* has {spec.ngrams:,} rows")
    for spec in description.specs:
        for number, rows in enumerate(spec.features or ()):
            name = f"{OWN_TENSOR}heads.{spec.kind}.features.tables.{number}.weight"
            shape = (rows, spec.feature_size)
            if name not in tensors:
                problems.append(MISSING + name)
            elif tuple(tensors[name].shape) != shape:
                problems.append(misshapen(name, tuple(tensors[name].shape), shape))
    require_fit(LoadReport(problems, [], []), path)


def require_stacks(
    tensors: Mapping[str, Tensor],
    weight_map: WeightMap,
    encoder: EncoderConfig,
    decoder: EncoderConfig,
    path: Path,
) -> None:
    """As ``require_sizes``, for an encoder-decoder model, whose weight map depends on no config."""
    wanted = _sizes(encoder) | _sizes_of_decoder(decoder)
    problems = list(_problems(tensors, weight_map, wanted, encoder))
    require_fit(LoadReport(problems, [], []), path)


def _sizes_of_decoder(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    return {name.replace("encoder.", "decoder.", 1): s for name, s in _sizes(config).items()}


def _sizes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of tensors by our names; of most that is their full shape, of heads the first size."""
    hidden, inner = config.hidden_size, config.attention_size
    embedding = config.embedding_size or hidden
    beside = hidden if config.mobile is not None else embedding
    tables = "encoder.embeddings."
    found: dict[str, tuple[int, ...]] = {}
    if config.image is None:
        found[tables + "word"] = (config.vocab_size, embedding)
    if config.position_embedding_type == "absolute":
        found[tables + "position"] = (config.max_position_embeddings, beside)
    if config.type_vocab_size:
        found[tables + "token_type"] = (config.type_vocab_size, beside)
    if config.task_type_vocab_size:
        found[tables + "task_type"] = (config.task_type_vocab_size, beside)
    if config.position_embedding_type in ("relative_key", "relative_key_query"):
        distances = 2 * config.max_position_embeddings - 1
        found[_BLOCK + "attention.bias.distance"] = (distances, config.head_size)
    if config.position_embedding_type == "relative_buckets":
        found["encoder.buckets"] = (config.relative_buckets, config.num_attention_heads)
    if config.head_width is not None:
        found[_BLOCK + "attention.output"] = (
            hidden,
            config.num_attention_heads * config.head_width,
        )
    if config.disentangled is not None and config.disentangled.terms:
        found["encoder.distances.table"] = (2 * config.disentangled.span, hidden)
    if config.mobile is None:
        parts = 2 if config.gated_feed_forward else 1
        found[_BLOCK + "feed_forward.up"] = (parts * config.intermediate_size, hidden)
    else:
        found[_BLOCK + "feed_forwards.{last}.network.up"] = (config.intermediate_size, inner)
        if config.mobile.use_bottleneck:
            found[_BLOCK + "narrow.dense"] = (config.mobile.intra_bottleneck_size, hidden)
    return found


def _problems(
    tensors: Mapping[str, Tensor],
    weight_map: WeightMap,
    wanted: Mapping[str, tuple[int, ...]],
    config: EncoderConfig,
) -> Iterator[str]:
    shapes = {weight_map.full_name(name): tuple(t.shape) for name, t in tensors.items()}
    tied = {rule.to for rule in weight_map.rules if isinstance(rule, Tie)}
    for rule in weight_map.rules:
        if not isinstance(rule, Rename | Reshape) or rule.theirs.endswith(".bias"):
            continue
        if not holds(rule, config):
            continue
        ours = _NUMBER.sub(".blocks.{i}.", rule.ours).removesuffix(".weight")
        shape = wanted.get(ours)
        if shape is None:
            continue
        written = isinstance(rule, Reshape) or rule.theirs.endswith(".weight")
        for name in _ends(rule.theirs if written else f"{rule.theirs}.weight", config):
            has = shapes.get(name)
            if has is None:
                if ours.startswith(_BLOCK) and name not in tied:
                    yield MISSING + name
            elif ours.startswith("heads."):
                if has[:1] != shape:
                    yield misshapen(name, has, (*shape, *has[1:]))
            elif has != shape and has[1:] != shape:  # with a batch dimension in ViT
                yield misshapen(name, has, (*has[: len(has) - len(shape)], *shape))


def _ends(name: str, config: EncoderConfig) -> Iterator[str]:
    """The name in the first and the last block."""
    last = 0 if config.mobile is None else config.mobile.num_feedforward_networks - 1
    for block in sorted({0, config.num_blocks - 1}):
        group, index = divmod(block, config.inner_group_num)
        numbered = {"i": block, "g": group, "j": index, "last": last}
        found = name
        for sign, number in numbered.items():
            found = found.replace("{" + sign + "}", str(number))
        yield found
        if found == name:
            return
