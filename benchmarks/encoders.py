"""Libraries that embed texts, all with one interface: texts in, (N, D) float32 out.

Each embedding is the mean over the tokens of a text, truncated at 512 tokens, with the same weights
and tokenizer. ``sorted`` variants sort the texts by length and restore the order of the vectors.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

LENGTH = 512
ROWS = 32
Encode = Callable[[list[str]], np.ndarray]
# Input ids and attention mask (B, S) -> hidden states (B, S, D).
Run = Callable[[np.ndarray, np.ndarray], np.ndarray]


def ownbert(folder: Path, precision: str) -> dict[str, Encode]:
    from ownbert.inference.embedder import Embedder

    def encoder(folder: Path, precision: str) -> Encode:
        embedder = Embedder(folder, precision=precision, max_length=LENGTH)
        return lambda texts: embedder.encode(texts, pooling="mean", normalize=False)

    if precision != "int8":
        return {"OwnBERT": encoder(folder, precision)}
    from ownbert import quantize

    with tempfile.TemporaryDirectory() as place:
        quantize(folder, Path(place) / "int8")
        return {
            "OwnBERT": encoder(Path(place) / "int8", "float32"),
            "OwnBERT, float32": encoder(folder, "float32"),
            "OwnBERT, bfloat16": encoder(folder, "bfloat16"),
        }


def transformers(folder: Path, precision: str) -> dict[str, Encode]:
    if precision == "int8":
        return {}
    model = _model(folder, getattr(torch, precision))

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            tensors = torch.from_numpy(ids), torch.from_numpy(mask)
            return model(*tensors).last_hidden_state.float().numpy()

    return {
        "Transformers, corpus order, 32 texts per batch": _padded(folder, run),
        "Transformers, sorted, 32 texts per batch": _padded(folder, run, order=True),
        "Transformers, sorted, 4,096 tokens per batch": _padded(
            folder, run, order=True, tokens=4096
        ),
    }


def sentence_transformers(folder: Path, precision: str) -> dict[str, Encode]:
    if precision == "int8":
        return {}
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    words = Transformer(str(folder), max_seq_length=LENGTH)
    size = words.get_word_embedding_dimension()
    model = SentenceTransformer(modules=[words, Pooling(size, "mean")], device="cpu")
    model = model.to(getattr(torch, precision))

    def encode(texts: list[str]) -> np.ndarray:
        found = model.encode(texts, batch_size=ROWS, convert_to_tensor=True)
        return found.float().numpy()

    return {"sentence-transformers (sorts itself), 32 texts per batch": encode}


def onnxruntime(folder: Path, precision: str) -> dict[str, Encode]:
    if precision == "bfloat16":
        return {}  # its CPU provider has no bfloat16 matmul
    import onnxruntime as ort
    from onnxruntime.transformers.optimizer import optimize_model

    model = _model(folder, torch.float32)
    config = model.config
    with tempfile.TemporaryDirectory() as place:
        path = str(Path(place) / "model.onnx")
        _export(model, path)
        # Fuses attention, LayerNorm with the residual, and GELU.
        fused = optimize_model(
            path,
            model_type="bert",
            num_heads=config.num_attention_heads,
            hidden_size=config.hidden_size,
        )
        fused.save_model_to_file(path)
        if precision == "int8":
            from onnx import TensorProto
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(
                path,
                path,
                per_channel=True,
                weight_type=QuantType.QInt8,
                extra_options={"DefaultTensorType": TensorProto.FLOAT},
            )
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]

    return {
        "ONNX Runtime (fused), corpus order, 32 texts per batch": _padded(folder, run),
        "ONNX Runtime (fused), sorted, 32 texts per batch": _padded(folder, run, order=True),
    }


def openvino(folder: Path, precision: str) -> dict[str, Encode]:
    import openvino as ov

    model = _model(folder, torch.float32)
    if precision == "int8":
        converted = _openvino_int8(folder, model)
    else:
        example = torch.ones(2, 8, dtype=torch.int64)
        with torch.inference_mode():
            converted = ov.convert_model(
                model, example_input={"input_ids": example, "attention_mask": example}
            )
    hints = {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    compiled = ov.Core().compile_model(converted, "CPU", hints)

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return compiled({"input_ids": ids, "attention_mask": mask})[0]

    return {
        "OpenVINO, corpus order, 32 texts per batch": _padded(folder, run),
        "OpenVINO, sorted, 32 texts per batch": _padded(folder, run, order=True),
        "OpenVINO, sorted, 4,096 tokens per batch": _padded(folder, run, order=True, tokens=4096),
    }


def _openvino_int8(folder: Path, model: Any) -> Any:
    """A graph with scales of activations that were measured on texts, one for each tensor."""
    import openvino as ov
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from passages import passages
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    class Texts(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(passages(16))

        def get_next(self) -> dict[str, np.ndarray] | None:
            text = next(self.left, None)
            if text is None:
                return None
            read = tokenizer(text, truncation=True, max_length=128, return_tensors="np")
            return {name: read[name] for name in ("input_ids", "attention_mask")}

    with tempfile.TemporaryDirectory() as place:
        path = str(Path(place) / "model.onnx")
        _export(model, path)
        quantize_static(
            path,
            path,
            Texts(),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
            extra_options={"MatMulConstBOnly": True},
        )
        core = ov.Core()
        return core.read_model(Path(path).read_bytes())


ENCODERS: dict[str, Callable[[Path, str], dict[str, Encode]]] = {
    "ownbert": ownbert,
    "transformers": transformers,
    "sentence_transformers": sentence_transformers,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def _model(folder: Path, dtype: torch.dtype) -> Any:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
    # T5 and XLNet have no other attention there.
    eager = config.model_type in ("t5", "xlnet")
    attention = "eager" if eager else "sdpa"
    return kind.from_pretrained(folder, attn_implementation=attention, dtype=dtype).eval()


def _export(model: Any, path: str) -> None:
    example = torch.ones(2, 8, dtype=torch.int64)
    names, axes = ["input_ids", "attention_mask"], {0: "batch", 1: "length"}
    with torch.inference_mode():
        torch.onnx.export(
            model,
            (example, example),
            path,
            input_names=names,
            output_names=["hidden", "pooled"],
            dynamic_axes=dict.fromkeys((*names, "hidden"), axes),
            opset_version=17,
            dynamo=False,
        )


def _padded(folder: Path, run: Run, *, order: bool = False, tokens: int | None = None) -> Encode:
    """Batches of 32 texts, or of ``tokens`` padded tokens, each padded to its longest text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.no_padding()

    def encode(texts: list[str]) -> np.ndarray:
        ids = tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]
        lengths = np.asarray([len(i) for i in ids])
        chosen = np.argsort(-lengths, kind="stable") if order else np.arange(len(ids))
        out: np.ndarray | None = None
        for rows in _batches(chosen, lengths, tokens):
            longest = lengths[rows].max()
            mask = (np.arange(longest) < lengths[rows, None]).astype(np.int64)
            grid = np.zeros_like(mask)
            grid[mask == 1] = np.concatenate([ids[i] for i in rows])
            weights = (mask / lengths[rows, None]).astype(np.float32)[:, None]  # (B, 1, S)
            pooled = (torch.from_numpy(weights) @ torch.from_numpy(run(grid, mask)))[:, 0].numpy()
            out = np.empty((len(ids), pooled.shape[1]), np.float32) if out is None else out
            out[rows] = pooled
        assert out is not None
        return out

    return encode


def _batches(order: np.ndarray, lengths: np.ndarray, tokens: int | None) -> Iterator[np.ndarray]:
    start = 0
    while start < len(order):
        stop = start + ROWS
        if tokens is not None:  # the first is the longest
            stop = start + max(1, tokens // int(lengths[order[start]]))
        yield order[start:stop]
        start = stop
