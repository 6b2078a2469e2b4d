"""Names from other libraries that users try on a ``Predictor``, with the name to use instead."""

INSTEAD = {
    **dict.fromkeys(("explain", "explain_words"), "take ownbert.explain(folder, texts)"),
    **dict.fromkeys(
        ("feature_importances_", "coef_"), "take ownbert.explain(folder, texts), for each text"
    ),
    **dict.fromkeys(("fit", "train", "finetune"), "take ownbert.fit or ownbert.finetune"),
    **dict.fromkeys(
        ("encode", "transform", "embed"), "take ownbert.Embedder(folder).encode(texts)"
    ),
    **dict.fromkeys(
        ("predict_file", "predict_files"), "take ownbert.predict(folder, file, output)"
    ),
    **dict.fromkeys(("classify", "run", "infer", "inference"), "take predictor(texts)"),
    **dict.fromkeys(("predict_log_proba", "decision_function"), "take predict_proba"),
    **dict.fromkeys(("model", "config", "eval"), "take ownbert.load(folder) for the network"),
    **dict.fromkeys(("tokenizer", "tokenize"), "take ownbert.load_tokenizer(folder)"),
    **dict.fromkeys(("id2label", "label2id", "classes"), "take labels or classes_"),
    **dict.fromkeys(("to", "cuda", "cpu"), "name the device as Predictor(folder, device=...)"),
    "fill": "take ownbert.fill(folder, texts)",
    "errors": "take the command: ownbert errors FOLDER FILE",
    "serve": "take the command: ownbert serve FOLDER",
    "export": "take ownbert.export(folder, output)",
    "report": "see report.html in the folder, or leaderboard()",
    "push_to_hub": "take the command: ownbert push FOLDER ORG/NAME",
}
