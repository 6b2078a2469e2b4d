"""XLNet (Yang et al. 2019): relative positions and segments, <cls> at the end, two streams."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ownbert.config.encoder import XLNET_STRUCTURE, EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.families.bert import ENCODER_ONLY
from ownbert.families.mapping.family import LAST, ArchitectureSpec, Calls, Family, Kinds, labels_of
from ownbert.families.mapping.weight_map import Heads, Rename, Reshape, Rule, Tie, WeightMap

_LAYER, _BLOCK = "transformer.layer.{i}.", "encoder.blocks.{i}."
_WORD = "transformer.word_embedding.weight"
# XLNet has no maximum length. The maximum in training is saved under OwnBERT's own key if it is not
# that of the released models.
_OWN_KEY = "ownbert_"
_LONGEST, _USUAL = _OWN_KEY + "max_position_embeddings", 512
# XLNet has a single dropout rate; these can differ from it when training in OwnBERT.
_RATES = ("attention_probs_dropout_prob", "activation_dropout")
_POOLINGS = ("last", "first", "mean")
# Heads with one output per sequence, from the "summary" of its tokens.
_SUMMARISED = ("classification", "choice")
_MLM = HeadSpec("mlm", transform=False)
_BEAM_SPAN = (
    ("start", "start_logits.dense"),
    ("end_hidden", "end_logits.dense_0"),
    ("end_norm", "end_logits.LayerNorm"),
    ("end", "end_logits.dense_1"),
    ("answer_hidden", "answer_class.dense_0"),
    ("answer.weight", "answer_class.dense_1.weight"),
)


def _summary(kind: str) -> HeadSpec:
    return HeadSpec(kind, pooling="last", dense="tanh", dropout_first=False)


def _reads_head(spec: HeadSpec, values: Mapping[str, Any]) -> HeadSpec:
    """Set the pooling of a head, and whether a dense layer follows."""
    if spec.kind not in _SUMMARISED:
        return spec
    pooling = values["summary_type"]
    if pooling not in _POOLINGS:
        known = " or ".join(map(repr, _POOLINGS))
        raise InputError("summary_type is {pooling!r}; it must be {options}", pooling, known)
    if not values["summary_use_proj"]:
        if values["summary_activation"]:
            raise InputError(
                "summary_use_proj is false and summary_activation {values!r}; without the dense "
                "layer, only null is supported",
                values["summary_activation"],
            )
        return replace(spec, pooling=pooling, dense=None)
    return replace(spec, pooling=pooling)


def _writes_head(spec: HeadSpec) -> dict[str, Any]:
    """Keys of a head; heads with other differences are written under OwnBERT's own key."""
    if spec.kind not in _SUMMARISED:
        return {}
    values: dict[str, Any] = {"summary_use_proj": spec.dense is not None}
    if spec.pooling in _POOLINGS:
        values["summary_type"] = spec.pooling
    return values


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    head_size = values.get("d_head")
    if head_size is not None and head_size * values["n_head"] != values["d_model"]:
        message = "d_head is {head_size}; it must be d_model {values} / n_head {values2}"
        raise InputError(message, head_size, values["d_model"], values["n_head"])
    clamp = values["clamp_len"]
    return {
        "max_position_embeddings": values.get(_LONGEST) or _USUAL,
        "longest_distance": clamp if clamp is not None and clamp > 0 else None,
        **{name: values.get(_OWN_KEY + name, values["dropout"]) for name in _RATES},
    }


def _writes(config: EncoderConfig) -> dict[str, Any]:
    far = config.longest_distance
    values: dict[str, Any] = {"clamp_len": -1 if far is None else far}
    if config.max_position_embeddings != _USUAL:
        values[_LONGEST] = config.max_position_embeddings
    for name in _RATES:
        if getattr(config, name) != config.hidden_dropout_prob:
            values[_OWN_KEY + name] = getattr(config, name)
    return values


def _parameter(ours: str, theirs: str, *, first: int | None = None) -> Rule:
    """A rule for a tensor of shape (H, K), or (first, H, K), in both formats."""

    def shape(config: EncoderConfig) -> tuple[int, ...]:
        rows = () if first is None else (first,)
        return (*rows, config.num_attention_heads, config.head_size)

    return Reshape(ours, theirs, shape, shape)


def _head_rules() -> tuple[Rule, ...]:
    rules: list[Rule] = [
        Rename("heads.mlm.decoder.bias", "lm_loss.bias"),
        Tie("lm_loss.weight", _WORD),
        Rename("heads.tokens.dense", "classifier"),
        Rename("heads.span.dense", "qa_outputs"),
        *(Rename(f"heads.beam_span.{ours}", theirs) for ours, theirs in _BEAM_SPAN),
    ]
    for kind in _SUMMARISED:
        rules += [
            Rename(f"heads.{kind}.hidden", "sequence_summary.summary"),
            Rename(f"heads.{kind}.dense", "logits_proj"),
        ]
    return tuple(rules)


_ATTENTION, _THEIRS = _BLOCK + "attention.", _LAYER + "rel_attn."


def _arguments(kinds: Kinds, decoder: bool) -> Sequence[str]:
    masks = ("attention_mask", "mems", "perm_mask", "target_mapping")
    types = ("token_type_ids", "input_mask")
    names = (*types, *masks) if kinds == ("choice",) else (*masks, *types)
    labels = labels_of(kinds)
    if kinds == ("beam_span",):
        labels = (*labels_of(("span",)), "is_impossible", "cls_index", "p_mask")
    further = ("head_mask", "inputs_embeds", *labels, "use_mems")
    return ["input_ids", *names, *further, *LAST]


XLNET = Family(
    model_type="xlnet",
    weight_map=WeightMap(
        rules=(
            Rename("encoder.embeddings.word.weight", _WORD),
            Reshape(
                "encoder.embeddings.mask",
                "transformer.mask_emb",
                lambda c: (c.hidden_size,),
                lambda c: (1, 1, c.hidden_size),
            ),
            Heads(_ATTENTION + "qkv.weight", tuple(_THEIRS + name for name in "qkv")),
            Heads(_ATTENTION + "bias.distance.weight", (_THEIRS + "r",)),
            # Not transposed, (D, H, K): only the columns of the heads are concatenated.
            Reshape(
                _ATTENTION + "output.weight",
                _THEIRS + "o",
                lambda c: (c.hidden_size, c.hidden_size),
                lambda c: (c.hidden_size, c.num_attention_heads, c.head_size),
            ),
            _parameter(_ATTENTION + "bias.content", _THEIRS + "r_w_bias"),
            _parameter(_ATTENTION + "bias.position", _THEIRS + "r_r_bias"),
            _parameter(_ATTENTION + "bias.segment", _THEIRS + "r_s_bias"),
            _parameter(_ATTENTION + "bias.segments", _THEIRS + "seg_embed", first=2),
            Rename(_BLOCK + "attention_norm", _THEIRS + "layer_norm"),
            Rename(_BLOCK + "feed_forward.up", _LAYER + "ff.layer_1"),
            Rename(_BLOCK + "feed_forward.down", _LAYER + "ff.layer_2"),
            Rename(_BLOCK + "feed_forward_norm", _LAYER + "ff.layer_norm"),
            *_head_rules(),
        ),
        prefix="transformer.",
    ),
    architectures={
        "XLNetModel": ArchitectureSpec(pooler=False),
        "XLNetLMHeadModel": ArchitectureSpec((_MLM,)),
        "XLNetForSequenceClassification": ArchitectureSpec((_summary("classification"),)),
        "XLNetForTokenClassification": ArchitectureSpec((HeadSpec("tokens", dropout=0.0),)),
        "XLNetForMultipleChoice": ArchitectureSpec((_summary("choice"),)),
        "XLNetForQuestionAnsweringSimple": ArchitectureSpec((HeadSpec("span"),)),
        "XLNetForQuestionAnswering": ArchitectureSpec((HeadSpec("beam_span"),)),
    },
    defaults={
        "vocab_size": 32000,
        "d_model": 1024,
        "n_layer": 24,
        "n_head": 16,
        "d_inner": 4096,
        "ff_activation": "gelu",
        "untie_r": True,
        "attn_type": "bi",
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "dropout": 0.1,
        "mem_len": 512,
        "reuse_len": None,
        "use_mems_eval": True,
        "use_mems_train": False,
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "summary_last_dropout": 0.1,
        "start_n_top": 5,
        "end_n_top": 5,
        "pad_token_id": 5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    names={
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "d_inner",
        "hidden_act": "ff_activation",
        "hidden_dropout_prob": "dropout",
    },
    fixed=XLNET_STRUCTURE,
    reads=_reads,
    writes=_writes,
    required={
        **ENCODER_ONLY,
        "attn_type": ("bi",),
        "bi_data": (False,),
        "summary_proj_to_labels": (False, None),
        "pruned_heads": (None, {}),
    },
    dropouts=dict.fromkeys(_SUMMARISED, "summary_last_dropout"),
    activations=dict.fromkeys(_SUMMARISED, "summary_activation"),
    reads_head=_reads_head,
    writes_head=_writes_head,
    calls=Calls(_arguments, unsupported=("mems", "use_mems", "input_mask"), memory=True),
)
