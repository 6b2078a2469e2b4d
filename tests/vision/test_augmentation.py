"""Images that are flipped, shifted and cropped."""

import numpy as np
import pytest

from ownbert.vision.augmentation import Augmentation

PIXELS = np.random.default_rng(1).random((3, 10, 20), dtype=np.float32)


def drawn(augmentation: Augmentation, count: int = 200, pixels: np.ndarray = PIXELS):
    return [augmentation(pixels, np.random.default_rng((0, i))) for i in range(count)]


def test_nothing_asked_nothing_changed():
    for found in drawn(Augmentation(), 3):
        np.testing.assert_array_equal(found, PIXELS)


def test_it_depends_on_the_draw_alone():
    augmentation = Augmentation(flip=True, shift=0.2, crop=0.5)
    first, again = drawn(augmentation, 9), drawn(augmentation, 9)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len({one.tobytes() for one in first}) == 9


def test_half_are_mirrored():
    mirrored = [
        np.array_equal(found, PIXELS[..., ::-1]) for found in drawn(Augmentation(flip=True))
    ]
    same = [np.array_equal(found, PIXELS) for found in drawn(Augmentation(flip=True))]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 70 < sum(mirrored) < 130


def test_moved_images_keep_what_they_show_and_repeat_the_edge():
    seen = set()
    for found in drawn(Augmentation(shift=0.1)):
        down, across = next(
            (y, x)
            for y in range(-1, 2)
            for x in range(-2, 3)
            if np.array_equal(found[:, 1:-1, 2:-2], PIXELS[:, 1 + y : 9 + y, 2 + x : 18 + x])
        )
        seen.add((down, across))
        if across == 2:  # the two columns on the right have nothing to show
            np.testing.assert_array_equal(found[..., -1], found[..., -3])
    assert seen == {(y, x) for y in range(-1, 2) for x in range(-2, 3)}


@pytest.mark.parametrize("crop", [0.25, 0.64])
def test_parts_are_as_large_as_they_may_be(crop: float):
    # On a slope a part has the slope times its side.
    slope = np.tile(np.arange(40.0), (1, 40, 1))
    sides = [
        float(np.diff(found[0, 0, 5:35]).mean())
        for found in drawn(Augmentation(crop=crop), pixels=slope)
    ]
    assert crop**0.5 - 0.01 <= min(sides) < crop**0.5 + 0.05
    assert 0.95 < max(sides) <= 1.0
    assert all(
        found.min() >= 0 and found.max() <= 39
        for found in drawn(Augmentation(crop=crop), pixels=slope)
    )


def test_types_and_shapes_stay():
    for augmentation in (Augmentation(flip=True, shift=0.3), Augmentation(crop=0.3)):
        (found,) = drawn(augmentation, 1)
        assert (found.shape, found.dtype) == (PIXELS.shape, PIXELS.dtype)
