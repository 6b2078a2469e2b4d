"""Names of files in a run's output folder."""

RECIPE = "recipe.yaml"
# The members of an ensemble, and the members of a blend with their weights.
ENSEMBLE, BLEND = "ensemble.json", "blend.json"
# The model card.
CARD = "README.md"
CONFUSION = "confusion.png"
# The report of ``fit`` for programs.
REPORT = "report.json"
# Calibration data from held-out rows, for predictions with a reject option.
HELD_OUT = "held_out.npz"
# Counts that describe the training rows, for ``ownbert drift``.
TRAINING_ROWS = "training_rows.json"
# Calibration data of the network alone, in a folder with a blend.
HELD_OUT_NETWORK = "held_out_network.npz"
# Sequences planted in the training text of a pretrained model.
CANARIES = "canaries.json"
# Subfolders: the network whose vectors a linear model uses, the source vocabulary of a translation
# model with two vocabularies, and the generator of an ELECTRA.
ENCODER, SOURCE, GENERATOR = "encoder", "source", "generator"
