"""Files of a run's output folder."""

RECIPE = "recipe.yaml"
# Names the members of an ensemble, and those of a blend with their weights.
ENSEMBLE, BLEND = "ensemble.json", "blend.json"
# The model card.
CARD = "README.md"
CONFUSION = "confusion.png"
# What is known of held-out rows, for answers that may be refused.
HELD_OUT = "held_out.npz"
# The same of the network alone, where a folder has a blend.
HELD_OUT_NETWORK = "held_out_network.npz"
# Sequences that were planted in the training text of a pretrained model.
CANARIES = "canaries.json"
# Subfolders: the network of a linear model on its vectors, and the source's vocabulary of a
# translation model whose sides have two.
ENCODER, SOURCE = "encoder", "source"
