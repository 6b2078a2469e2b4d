"""Images as sequences: patches, class token, positions (Dosovitskiy et al. 2021, figure 1).

T tokens (patches and class tokens), B images, P patches of an image, D hidden; a patch has
channels x height x width values.
"""

import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch
from ownbert.batches.layout import make_layout
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Image
from ownbert.exceptions import InputError
from ownbert.nn.layers import Dropout, Linear

# Ratio of the highest to the lowest frequency of initial position embeddings.
_FREQUENCY_RATIO = 100.0


class PatchEmbeddings(nn.Module):
    """A linear projection of each patch, preceded by the class token, plus learnt positions.

    The projection is a convolution with the patch size as kernel size and stride. Values of a patch
    are ordered by channel, row and column, so its matrix is the weight of a Conv2d, (D, channels,
    height, width), flattened to two dimensions. Patches are in row-major order.

    Source: Dosovitskiy et al. 2021, equation 1.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        image = config.image
        assert image is not None
        self.image = image
        self.projection = Linear(image.patch_values, config.hidden_size)
        self.class_token = nn.Parameter(torch.zeros(config.hidden_size))
        self.position = nn.Embedding(image.patches + 1, config.hidden_size)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, batch: Batch) -> Tensor:
        """Packed batch -> (T, D).

        Raises:
            ValueError: the batch has no patches.
        """
        if batch.patches is None:
            raise ValueError("this model reads images: the batch has no patches")
        patches = batch.patches.to(self.class_token.dtype)
        rows = self.projection(patches)  # (B P, numbers) -> (B P, D)
        images = rows.unflatten(0, (batch.sequences, -1))  # (B, P, D)
        first = self.class_token.to(rows.dtype).expand(len(images), 1, -1)
        hidden = torch.cat((first, images), 1).flatten(0, 1)  # (T, D)
        return self.dropout(hidden + self.position(batch.positions))

    def batch(self, pixel_values: Tensor) -> Batch:
        """See ``picture_batch``."""
        return picture_batch(pixel_values, self.image)

    @torch.no_grad()
    def start(self) -> None:
        """Set the position embeddings of the patches to sines and cosines."""
        self.position.weight[1:] = sinusoidal_positions(
            self.image.grid, self.position.embedding_dim
        )

    def extra_repr(self) -> str:
        (height, width), (down, across) = self.image.size, self.image.patch
        return f"{height} x {width} pixels in {self.image.patches} patches of {down} x {across}"


def picture_batch(pixel_values: Tensor, image: Image) -> Batch:
    """Images (B, C, H, W) as a packed batch on their device, differentiable.

    Raises:
        InputError: the images do not have the shape of ``image``.
    """
    if pixel_values.ndim != 4 or pixel_values.shape[1:] != (image.channels, *image.size):
        expected = ", ".join(map(str, (image.channels, *image.size)))
        raise InputError(
            "pixel_values have shape {shape}, not (B, {expected})",
            tuple(pixel_values.shape),
            expected,
        )
    count, device = len(pixel_values), pixel_values.device
    (down, across), (height, width) = image.grid, image.patch
    cut = pixel_values.unflatten(3, (across, width)).unflatten(2, (down, height))
    patches = cut.permute(0, 2, 4, 1, 3, 5).reshape(count * image.patches, image.patch_values)
    layout = make_layout((image.patches + 1,) * count, device)
    nothing = torch.zeros(count * (image.patches + 1), dtype=torch.long, device=device)
    positions = torch.arange(image.patches + 1, device=device).repeat(count)
    return Batch(nothing, nothing, positions, layout, patches=patches)


def sinusoidal_positions(grid: tuple[int, int], width: int) -> Tensor:
    """Initial position embeddings of patches: sines and cosines of row and column.

    Training converges much faster than from random ones.

    Args:
        grid: number of patches vertically and horizontally.
        width: hidden size D.

    Returns:
        (P, D) embeddings.

    Source: Beyer et al. 2022, section 2.
    """
    count = -(-width // 4)
    rates = _FREQUENCY_RATIO ** -(torch.arange(count) / max(1, count - 1))
    down, across = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    angles = [index.flatten()[:, None] * rates for index in (down, across)]
    columns = [wave(angle) for angle in angles for wave in (torch.sin, torch.cos)]
    return torch.cat(columns, 1)[:, :width]
