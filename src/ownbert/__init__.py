"""OwnBERT: a BERT of your own, from your own text, on your own machine.

    import ownbert

    ownbert.learn_vocabulary(["text.txt"], "my-bert", kind="blank")
    ownbert.prepare(["text.txt"], "tokens", tokenizer="my-bert")
    ownbert.pretrain("tokens", "my-bert", size="tiny", max_minutes=5)
    ownbert.finetune(model="my-bert", train="train.csv", dev="dev.csv", output="classifier")
    ownbert.predict("classifier", "new.csv", "predictions.jsonl")

``BertModel``, ``BertForSequenceClassification``, ``BertConfig``, ``BertTokenizer`` etc. make and
load models that are called like those of Transformers.

Names are imported on first use, so that ``import ownbert`` is fast.
"""

from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ownbert.checkpoint import load_tokenizer as load_tokenizer
    from ownbert.config.encoder import EncoderConfig as EncoderConfig
    from ownbert.corpus.learn_vocabulary import learn_vocabulary as learn_vocabulary
    from ownbert.corpus.store import prepare as prepare
    from ownbert.exceptions import InputError as InputError
    from ownbert.exporting.export import export as export
    from ownbert.exporting.push import push as push
    from ownbert.exporting.quantize import quantize as quantize
    from ownbert.finetuning.estimator import OwnBertClassifier as OwnBertClassifier
    from ownbert.finetuning.estimator import OwnBertRegressor as OwnBertRegressor
    from ownbert.finetuning.finetune import finetune as finetune
    from ownbert.fitting.fit import fit as fit
    from ownbert.fitting.network_probe import probe as probe
    from ownbert.inference.embedder import Embedder as Embedder
    from ownbert.inference.evaluate import evaluate as evaluate
    from ownbert.inference.fill_mask import fill as fill
    from ownbert.inference.pipeline import Predictor as Predictor
    from ownbert.inference.predict import predict as predict
    from ownbert.inference.score import Scorer as Scorer
    from ownbert.inference.score import score as score
    from ownbert.inference.shards import merge as merge
    from ownbert.inference.vector_files import embed as embed
    from ownbert.inspect.audit import audit as audit
    from ownbert.inspect.describe import describe as describe
    from ownbert.inspect.drift import drift as drift
    from ownbert.inspect.explain.explain import Explainer as Explainer
    from ownbert.inspect.explain.explain import explain as explain
    from ownbert.inspect.explain.faithfulness import faithfulness as faithfulness
    from ownbert.inspect.model_comparison import compare as compare
    from ownbert.nn.model import Model as Model
    from ownbert.pretraining.pretraining_run import pretrain as pretrain
    from ownbert.text.tokenizer import Tokenizer as Tokenizer
    from ownbert.train.loop import Callbacks as Callbacks
    from ownbert.transformers.models import load as load
    from ownbert.transformers.models import save as save
    from ownbert.transformers.speed_up import speed_up as speed_up
    from ownbert.unlabelled.duplicates import duplicates as duplicates
    from ownbert.unlabelled.index import Index as Index
    from ownbert.unlabelled.index import build_index as build_index
    from ownbert.unlabelled.label import to_label as to_label
    from ownbert.unlabelled.topics import topics as topics

    # From the table of families (ownbert.transformers.models).
    BertConfig: Any
    BertForMaskedLM: Any
    BertForMultipleChoice: Any
    BertForNextSentencePrediction: Any
    BertForPreTraining: Any
    BertForQuestionAnswering: Any
    BertForSequenceClassification: Any
    BertForTokenClassification: Any
    BertLMHeadModel: Any
    BertModel: Any
    BertTokenizer: Any

__version__ = "0.1.0"

_MODULES = {
    "Callbacks": "train.loop",
    "EncoderConfig": "config.encoder",
    "Index": "unlabelled.index",
    "InputError": "exceptions",
    "Model": "nn.model",
    "Tokenizer": "text.tokenizer",
    "Embedder": "inference.embedder",
    "Predictor": "inference.pipeline",
    "OwnBertClassifier": "finetuning.estimator",
    "OwnBertRegressor": "finetuning.estimator",
    "Explainer": "inspect.explain.explain",
    "audit": "inspect.audit",
    "compare": "inspect.model_comparison",
    "build_index": "unlabelled.index",
    "describe": "inspect.describe",
    "drift": "inspect.drift",
    "duplicates": "unlabelled.duplicates",
    "embed": "inference.vector_files",
    "evaluate": "inference.evaluate",
    "explain": "inspect.explain.explain",
    "export": "exporting.export",
    "faithfulness": "inspect.explain.faithfulness",
    "fill": "inference.fill_mask",
    "finetune": "finetuning.finetune",
    "fit": "fitting.fit",
    "learn_vocabulary": "corpus.learn_vocabulary",
    "load": "transformers.models",
    "load_tokenizer": "checkpoint",
    "merge": "inference.shards",
    "predict": "inference.predict",
    "prepare": "corpus.store",
    "pretrain": "pretraining.pretraining_run",
    "probe": "fitting.network_probe",
    "push": "exporting.push",
    "quantize": "exporting.quantize",
    "save": "transformers.models",
    "Scorer": "inference.score",
    "score": "inference.score",
    "speed_up": "transformers.speed_up",
    "topics": "unlabelled.topics",
    "to_label": "unlabelled.label",
}

# Of Transformers' names only those of BERT are listed; those of other families are found as well.
_BERT = (
    *("BertConfig", "BertModel", "BertTokenizer", "BertForPreTraining"),
    *("BertForMaskedLM", "BertForNextSentencePrediction", "BertLMHeadModel"),
    *("BertForSequenceClassification", "BertForTokenClassification"),
    *("BertForQuestionAnswering", "BertForMultipleChoice"),
)
__all__ = sorted((*_MODULES, *_BERT))  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"ownbert.{_MODULES[name]}"), name)
    names = import_module("ownbert.transformers")
    value = getattr(names, name, None) if name[:1].isupper() else None
    if value is None:
        known = {each.lower(): f"ownbert.{each}" for each in __all__}
        # Accept the spelling of the package's name: OwnBERTClassifier.
        written = name.replace("OwnBERT", "OwnBert")
        others = import_module("ownbert.exceptions").other_names("ownbert")
        fitting = (other for other in others if fnmatchcase(written, f"{other}*"))
        start = max(fitting, key=len, default="")
        instead = known.get(name.lower().replace("_", "")) or others.get(start)
        advice = f": use {instead}" if instead else ""
        raise AttributeError(f"module 'ownbert' has no attribute {name!r}{advice}")
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
