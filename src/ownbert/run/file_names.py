"""Files of a run's output folder."""

RECIPE = "recipe.yaml"
# Names the members of an ensemble, and those of a blend with their weights.
ENSEMBLE, BLEND = "ensemble.json", "blend.json"
