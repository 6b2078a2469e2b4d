"""Names from other libraries that users try on a ``Predictor``, with the name to use instead."""

INSTEAD = {
    **dict.fromkeys(("explain", "explain_words"), "use ownbert.explain(folder, texts)"),
    **dict.fromkeys(
        ("feature_importances_", "coef_"), "use ownbert.explain(folder, texts), for each text"
    ),
    **dict.fromkeys(("fit", "train", "finetune"), "use ownbert.fit or ownbert.finetune"),
    **dict.fromkeys(("encode", "transform", "embed"), "use ownbert.Embedder(folder).encode(texts)"),
    **dict.fromkeys(("predict_file", "predict_files"), "use ownbert.predict(folder, file, output)"),
    **dict.fromkeys(("classify", "run", "infer", "inference"), "use predictor(texts)"),
    **dict.fromkeys(("predict_log_proba", "decision_function"), "use predict_proba"),
    **dict.fromkeys(("model", "config", "eval"), "use ownbert.load(folder) for the network"),
    **dict.fromkeys(("tokenizer", "tokenize"), "use ownbert.load_tokenizer(folder)"),
    **dict.fromkeys(("id2label", "label2id", "classes"), "use labels or classes_"),
    **dict.fromkeys(("to", "cuda", "cpu"), "name the device as Predictor(folder, device=...)"),
    "fill": "use ownbert.fill(folder, texts)",
    "errors": "use the command: ownbert errors FOLDER FILE",
    "serve": "use the command: ownbert serve FOLDER",
    "export": "use ownbert.export(folder, output)",
    "report": "see report.html in the folder, or leaderboard()",
    "push_to_hub": "use the command: ownbert push FOLDER ORG/NAME",
}
