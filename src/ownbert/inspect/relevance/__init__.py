"""Relevance of tokens, or of an image's patches, for a model's answer."""

from ownbert.inspect.relevance.attribution import attention_and_gradient as attention_and_gradient
from ownbert.inspect.relevance.attribution import gradient_relevance as gradient_relevance
from ownbert.inspect.relevance.attribution import over_patches as over_patches
from ownbert.inspect.relevance.attribution import relevance as relevance
from ownbert.inspect.relevance.attribution import rollout as rollout
