"""Labelled images from folders, IDX files and arrays."""

import gzip
import struct
import sys
from collections import Counter
from pathlib import Path
from zlib import compress, crc32

import numpy as np
import pytest
from PIL import Image

from ownbert import InputError
from ownbert.vision.image_files import (
    images_of_array,
    labels_beside,
    read_idx,
    read_labelled_images,
    stream_images,
)

DRAW = np.random.default_rng(0)
GREY = DRAW.integers(0, 256, (6, 5, 4)).astype(np.uint8)
LABELS = np.asarray([0, 1, 2, 0, 1, 2], dtype=np.uint8)


def idx_bytes(array: np.ndarray, kind: int = 8) -> bytes:
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, kind, array.ndim]) + shape + array.tobytes()


def idx_pair(folder: Path, name: str = "train", ending: str = "") -> Path:
    pack = gzip.compress if ending else bytes
    images = folder / f"{name}-images-idx3-ubyte{ending}"
    images.write_bytes(pack(idx_bytes(GREY)))
    (folder / f"{name}-labels-idx1-ubyte{ending}").write_bytes(pack(idx_bytes(LABELS)))
    return images


def class_folders(folder: Path) -> Path:
    """Two grey images of ``cat`` and one in colour of ``dog``, with hidden files between."""
    (folder / "cat" / "more").mkdir(parents=True)
    (folder / "dog").mkdir()
    Image.fromarray(GREY[0]).save(folder / "cat" / "b.png")
    Image.fromarray(GREY[1]).save(folder / "cat" / "more" / "a.png")
    Image.fromarray(np.stack([GREY[2]] * 3, -1)).save(folder / "dog" / "c.bmp")
    for hidden in (".DS_Store", "cat/.DS_Store", "dog/._c.bmp"):
        (folder / hidden).write_bytes(b"nothing")
    return folder


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_plain_and_packed(tmp_path: Path, ending: str):
    images = idx_pair(tmp_path, ending=ending)
    for source in (images, tmp_path):  # the only pair of a folder
        found = read_labelled_images(source)
        assert [label for _, label in found] == LABELS.tolist()
        np.testing.assert_array_equal([p.read(1) for p, _ in found], GREY)
        assert found[2][0].name == f"{images}, picture 3"
        assert {(p.size, p.channels, p.path) for p, _ in found} == {((5, 4), 1, None)}
    assert len(list(stream_images(images))) == 6


def test_names_of_labels(tmp_path: Path):
    for images, labels in (
        ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"),
        ("train-images.idx3-ubyte", "train-labels.idx1-ubyte"),
    ):
        (tmp_path / labels).touch()
        assert labels_beside(tmp_path / images) == tmp_path / labels


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x89PNG" + bytes(20), "is not an IDX file: it begins with 89 50 4e 47"),
        (b"", "begins with nothing"),
        (idx_bytes(GREY)[:-3], r"is cut off: its header says 6 x 5 x 4, which is 120 bytes, but"),
        (idx_bytes(GREY) + b"1", "is too long"),
        (idx_bytes(GREY)[:9], "is cut off in its header"),
        (idx_bytes(GREY, kind=0x0D), "numbers of type 0x0d; only 0x08"),
        (gzip.compress(idx_bytes(GREY))[:-30], "gzip data is damaged"),
        (idx_bytes(LABELS), "has 1 dimensions; a file of images has 3"),
    ],
)
def test_idx_files_that_are_wrong(tmp_path: Path, data: bytes, message: str):
    images = idx_pair(tmp_path)
    images.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_labelled_images(images)


def test_labels_that_do_not_fit(tmp_path: Path):
    images = idx_pair(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(LABELS[:5]))
    with pytest.raises(InputError, match=r"has 6 images and .*labels-idx1-ubyte 5 labels"):
        read_labelled_images(images)
    labels.write_bytes(idx_bytes(GREY))
    with pytest.raises(InputError, match="a file of labels has 1"):
        read_labelled_images(images)
    labels.unlink()
    with pytest.raises(InputError, match=r"has no labels: .*train-labels-idx1-ubyte is missing"):
        read_labelled_images(images)
    labels.write_bytes(idx_bytes(LABELS))
    idx_pair(tmp_path, "t10k")
    with pytest.raises(InputError, match=r"contains several files of images; .*t10k.*train"):
        read_labelled_images(tmp_path)


def test_class_folders(tmp_path: Path):
    found = read_labelled_images(class_folders(tmp_path))
    assert [(p.path, label) for p, label in found] == [
        (tmp_path / "cat" / "b.png", "cat"),
        (tmp_path / "cat" / "more" / "a.png", "cat"),
        (tmp_path / "dog" / "c.bmp", "dog"),
    ]
    assert [(p.size, p.channels) for p, _ in found] == [((5, 4), 1)] * 2 + [((5, 4), 3)]
    np.testing.assert_array_equal(np.asarray(found[0][0].read(1)), GREY[0])
    assert [p.path for p in stream_images(tmp_path)] == [p.path for p, _ in found]
    assert [p.path for p in stream_images(tmp_path / "dog" / "c.bmp")] == [found[2][0].path]


def test_folders_that_are_wrong(tmp_path: Path):
    with pytest.raises(InputError, match="has no class folders"):
        read_labelled_images(tmp_path)
    with pytest.raises(InputError, match="contains no images"):
        list(stream_images(tmp_path))
    class_folders(tmp_path)
    (tmp_path / "bird").mkdir()
    (tmp_path / "bird" / ".hidden").touch()
    with pytest.raises(InputError, match="bird is a class folder without images"):
        read_labelled_images(tmp_path)
    other = tmp_path / "bird" / "notes.txt"
    other.write_text("no image")
    for read in (read_labelled_images, lambda path: list(stream_images(path))):
        with pytest.raises(InputError, match=r"notes\.txt is not an image that Pillow can read"):
            read(tmp_path)
    other.rename(tmp_path / "notes.txt")
    (tmp_path / "bird").joinpath(".hidden").unlink()
    (tmp_path / "bird").rmdir()
    with pytest.raises(InputError, match=r"notes\.txt is in none of the class folders"):
        read_labelled_images(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_labelled_images(tmp_path / "nothing")
    with pytest.raises(InputError, match="are a folder of class folders"):
        read_labelled_images(tmp_path / "notes.txt")


def test_a_truncated_image(tmp_path: Path):
    class_folders(tmp_path)
    path = tmp_path / "cat" / "b.png"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"b\.png cannot be read: it is damaged or cut off"):
        read_labelled_images(tmp_path)[0][0].read(1)


def test_an_image_is_rotated_as_it_was_held(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn to the right
    Image.fromarray(GREY[0]).save(tmp_path / "a.png", exif=exif)
    (image,) = stream_images(tmp_path)
    np.testing.assert_array_equal(np.asarray(image.read(1)), np.rot90(GREY[0], -1))


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
def test_the_size_is_that_of_what_is_read(tmp_path: Path, ending: str):
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        Image.fromarray(GREY[0]).convert("RGB").save(tmp_path / f"{turn}.{ending}", exif=exif)
    found = list(stream_images(tmp_path))
    assert [p.size for p in found] == [(5, 4)] * 4 + [(4, 5)] * 4
    assert [np.asarray(p.read(3)).shape[:2] for p in found] == [p.size for p in found]


def test_greys_of_more_than_a_byte(tmp_path: Path):
    """Floats and 16 bits come as fractions, and count as grey."""
    for name, array in (("f.tif", GREY[0] / np.float32(255)), ("i.png", GREY[0] * np.uint16(257))):
        Image.fromarray(array).save(tmp_path / name)
        (image,) = stream_images(tmp_path / name)
        assert image.channels == 1
        for channels in (1, 3):
            np.testing.assert_allclose(image.read(channels), GREY[0] / 255, atol=1e-6)
    for array, message in (
        (GREY[0].astype("f4"), r"a\.tif: its pixels contain values from .*fractions from 0 to 1"),
        (np.full((2, 2), 70_000, "i4"), r"a\.tif: its pixels .*whole numbers from 0 to 65535"),
    ):
        Image.fromarray(array).save(tmp_path / "a.tif")
        (image,) = stream_images(tmp_path / "a.tif")
        with pytest.raises(InputError, match=message):
            image.read(1)


def test_tables_among_images_are_skipped(tmp_path: Path):
    before = read_labelled_images(class_folders(tmp_path))
    for name in ("answers.jsonl", "cat/labels.csv", "dog/more/ANSWERS.TSV.gz", "measures.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("no image")
    assert read_labelled_images(tmp_path) == before
    assert [p for p, _ in before] == list(stream_images(tmp_path))


def test_without_pillow_one_line_says_what_to_install(tmp_path: Path, monkeypatch):
    class_folders(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"pip install 'ownbert\[vision\]'"):
        read_labelled_images(tmp_path)
    # Arrays and IDX need none.
    assert len(read_labelled_images((GREY, LABELS))) == 6


def test_arrays(tmp_path: Path):
    np.savez(tmp_path / "a.npz", images=GREY, labels=np.asarray(list("abcabc")))
    assert [label for _, label in read_labelled_images(tmp_path / "a.npz")] == list("abcabc")
    assert len(list(stream_images(tmp_path / "a.npz"))) == 6
    colour = np.stack([GREY] * 3, -1)
    same = [GREY, GREY[..., None], GREY.astype(int), GREY / 255, (GREY / 255).astype("f4")]
    for array in same:
        np.testing.assert_array_equal([p.read(1) for p in images_of_array(array, "")], GREY)
    (first, *_) = images_of_array(colour, "")
    assert (first.channels, first.name) == (3, "picture 1")
    assert first.read(1).mode == "RGB"  # to be made grey by Pillow
    np.testing.assert_array_equal(first.read(3), colour[0])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (GREY * 2.0, r"contain values from 0 to \d+; they must be fractions from 0 to 1"),
        (GREY.astype(int) - 1, "contain values from -1"),
        (GREY * np.nan, "contain values from nan to nan"),
        (GREY.reshape(6, 20), r"have the shape \(6, 20\)"),
        (np.zeros((6, 5, 4, 2), np.uint8), r"it must be \(N, H, W\) or \(N, H, W, 3\)"),
        (np.zeros((0, 5, 4), np.uint8), "have the shape"),
        ([GREY[0], GREY[1][:3]], "have different sizes"),
        (GREY.astype(str), "they must contain numbers"),
    ],
)
def test_arrays_that_are_wrong(images, message: str):
    with pytest.raises(InputError, match=message):
        read_labelled_images((images, LABELS))


def test_files_of_arrays_that_are_wrong(tmp_path: Path):
    path = tmp_path / "a.npz"
    odd = np.empty(2, object)
    odd[:] = [GREY[0], GREY[1][:3]]
    for arrays, message in (
        ({"images": odd, "labels": LABELS[:2]}, "images all of one size"),
        ({"images": GREY}, "has no array of labels"),
        ({"labels": LABELS}, "has no array of images"),
        ({"images": GREY, "labels": LABELS[:5]}, r"6 images and labels of shape \(5,\)"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(InputError, match=message):
            read_labelled_images(path)
    np.savez_compressed(path, images=GREY, labels=LABELS)
    packed = path.read_bytes()
    np.save(tmp_path / "a.npy", GREY)
    other = (tmp_path / "a.npy").read_bytes()
    hit = bytearray(packed)
    hit[60:90] = bytes(30)
    for data in (b"nothing", b"", packed[:-40], bytes(hit), other):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"a\.npz cannot be read \(it is damaged"):
            read_labelled_images(path)


def test_digests_tell_copies(tmp_path: Path):
    found = images_of_array(np.concatenate([GREY, GREY[:2]]), "")
    assert max(Counter(p.digest for p in found).values()) == 2
    assert found[0].digest == found[6].digest


def test_the_real_files(shared_data: Path):
    folder = shared_data / "fashion-mnist-20k"
    images = read_idx(folder / "t10k-images-idx3-ubyte.gz")
    found = read_labelled_images(folder / "t10k-images-idx3-ubyte.gz")
    assert images.shape == (10_000, 28, 28)
    assert Counter(label for _, label in found) == dict.fromkeys(range(10), 1000)


def test_a_picture_with_too_many_pixels_is_not_decoded(tmp_path: Path):
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc32(name + data))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", compress(b"")), chunk(b"IEND", b"")
    (tmp_path / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    with pytest.raises(InputError, match=r"huge\.png has more than [\d,]+ pixels; make it smaller"):
        list(stream_images(tmp_path / "huge.png"))
