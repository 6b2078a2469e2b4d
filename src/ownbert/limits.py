"""The largest values of numbers that users and config.json files choose, each with its reason.

A value beyond its limit is a slip or a wrong unit. It would end in an allocation that aborts the
process, or run for ever, so it is refused before anything is read.
"""

# NumPy's generators take no larger seed in every function.
SEED = 2**32 - 1
# At a thousand steps per second these are eleven days.
STEPS = 10**9
# A year.
MINUTES = 366 * 24 * 60
EPOCHS = 100_000
# As many steps have batches in memory at once.
ACCUMULATED = 10_000
# Each is a training of its own.
MODELS = 1_000
# States on the disk, each with all weights.
STATES = 1_000
# Tokens of a sequence: so many positions of a base model have 3 GB.
LENGTH = 1 << 20
# Tokens of a batch: the largest that BERT was trained with (You et al. 2020) have 2**24.
BATCH_TOKENS = 1 << 24
# Rows of a batch.
BATCH_ROWS = 1 << 16
# Windows of a document.
WINDOWS = 1 << 16
# Entries of a vocabulary: a base model has 6 GB of embeddings for them.
VOCABULARY = 1 << 21
# Occurrences of a token, and rows of a file; counters of 32 bits end there.
COUNT = 2**31 - 1
# A matrix of that width and height has four thousand million weights.
WIDTH = 1 << 16
LAYERS = 1_000
# Columns of word features, each with a table of its own.
FEATURES = 256
# Tags of such a column in a token store, which keeps an id in two bytes.
TAGS = (1 << 16) - 1
# Pixels of a side of an image; its patches are a sequence.
PIXELS = 1 << 13
# Tokens of a unit that is masked; BERT reads 512.
NGRAM = 512
# Learning rates: beyond it the update of a float32 is infinite at once.
RATE = 1e30
# Weights of losses, norms and thresholds: beyond it a float32 has no digits left for the others.
WEIGHT = 1e9
# Hypotheses, each with keys and values of its own; wider beams translate worse (Koehn and Knowles
# 2017).
BEAMS = 256
# Beyond it the longest hypothesis is always chosen, or the shortest.
LENGTH_PENALTY = 10
# Decimals of rounded weights, which are float64 with 15 digits.
DECIMALS = 10
# Processes that tokenise, of 150 MB each.
PROCESSES = 256
# Shards of an input; each of them reads all of it.
SHARDS = 10_000
