"""Upper limits of numbers in users' settings and config.json files, each with its reason.

A larger value is a slip or a wrong unit. It would lead to an allocation that aborts the process,
or to an endless run, so it is rejected before any file is read.
"""

# The largest seed that all of NumPy's generators accept.
SEED = 2**32 - 1
# Eleven days at a thousand steps per second.
STEPS = 10**9
# One year.
MINUTES = 366 * 24 * 60
EPOCHS = 100_000
# The batches of this many steps are in memory at once.
ACCUMULATED = 10_000
# Each model is trained separately.
MODELS = 1_000
# Saved states on disk, each with all weights.
STATES = 1_000
# Tokens per sequence; the position table of a base model of this length has 3 GB.
LENGTH = 1 << 20
# Tokens per batch; the largest that BERT was trained with (You et al. 2020) have 2**24.
BATCH_TOKENS = 1 << 24
# Rows per batch.
BATCH_ROWS = 1 << 16
# Windows per document.
WINDOWS = 1 << 16
# Vocabulary size; the embeddings of a base model have 6 GB at this size.
VOCABULARY = 1 << 21
# Token counts, and rows per file; 32-bit counters overflow beyond it.
COUNT = 2**31 - 1
# Minimum frequency of the entries of a vocabulary; few words of any corpus are so frequent.
FREQUENCY = 10**7
# A square matrix of this width has four billion weights.
WIDTH = 1 << 16
LAYERS = 1_000
# Columns of word features, each with a separate embedding table.
FEATURES = 256
# Tags per column in a token store, which stores ids in two bytes.
TAGS = (1 << 16) - 1
# Width or height of an image in pixels; its patches form a sequence.
PIXELS = 1 << 13
# Tokens in a masked unit; BERT reads 512.
NGRAM = 512
# Learning rate; with larger ones float32 updates overflow immediately.
RATE = 1e30
# Weights of losses, norms and thresholds; larger ones leave no float32 precision for other terms.
WEIGHT = 1e9
# Beam size; each hypothesis has separate keys and values, and wider beams translate worse (Koehn
# and Knowles 2017).
BEAMS = 256
# With larger values the longest hypothesis always wins, or the shortest.
LENGTH_PENALTY = 10
# Decimal places of rounded weights; float64 has 15 digits.
DECIMALS = 10
# Tokenisation processes, of 150 MB each.
PROCESSES = 256
# Shards of an input; each shard reads all of it.
SHARDS = 10_000
# Gigabytes of weights on a server.
GIGABYTES = 1_000_000
