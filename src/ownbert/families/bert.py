"""BERT (Devlin et al. 2019), as Transformers stores it."""

from ownbert.families.rules import Drop, Family, Fuse, Head, Rename, Tie

_TABLES = "bert.embeddings."
_LAYER = "bert.encoder.layer.{i}."
_BLOCK = "encoder.blocks.{i}."

BERT = Family(
    model_type="bert",
    prefix="bert.",
    rules=(
        Rename("encoder.embeddings.word.weight", _TABLES + "word_embeddings.weight"),
        Rename("encoder.embeddings.position.weight", _TABLES + "position_embeddings.weight"),
        Rename("encoder.embeddings.token_type.weight", _TABLES + "token_type_embeddings.weight"),
        Rename("encoder.embeddings.norm", _TABLES + "LayerNorm"),
        Fuse(
            _BLOCK + "attention.qkv",
            tuple(_LAYER + f"attention.self.{name}" for name in ("query", "key", "value")),
        ),
        Rename(_BLOCK + "attention.output", _LAYER + "attention.output.dense"),
        Rename(_BLOCK + "attention_norm", _LAYER + "attention.output.LayerNorm"),
        Rename(_BLOCK + "feed_forward.up", _LAYER + "intermediate.dense"),
        Rename(_BLOCK + "feed_forward.down", _LAYER + "output.dense"),
        Rename(_BLOCK + "feed_forward_norm", _LAYER + "output.LayerNorm"),
        Rename("pooler.dense", "bert.pooler.dense"),
        Rename("heads.mlm.dense", "cls.predictions.transform.dense"),
        Rename("heads.mlm.norm", "cls.predictions.transform.LayerNorm"),
        Rename("heads.mlm.decoder.bias", "cls.predictions.bias"),
        Tie("cls.predictions.decoder.bias", "cls.predictions.bias"),
        Tie("cls.predictions.decoder.weight", _TABLES + "word_embeddings.weight"),
        Rename("heads.nsp.dense", "cls.seq_relationship"),
        Rename("heads.classification.dense", "classifier"),
        Drop(_TABLES + "position_ids", "0, 1, 2, ...: a buffer of old checkpoints"),
    ),
    architectures={
        "BertModel": Head(),
        "BertForPreTraining": Head(("mlm", "nsp")),
        "BertForMaskedLM": Head(("mlm",), pooler=False),
        "BertForNextSentencePrediction": Head(("nsp",)),
        "BertForSequenceClassification": Head(("classification",)),
    },
    required={
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
        "pruned_heads": ({}, None),
        "problem_type": (None, "single_label_classification"),
        "quantization_config": (None,),
    },
    # As in the converted originals of Google, bert-base-uncased among them.
    old_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)
