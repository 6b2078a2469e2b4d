"""``push``: uploads a finished folder to the Hugging Face hub, without texts and unknown files."""

import os
from pathlib import Path

from ownbert.checkpoint import CONFIG
from ownbert.exceptions import InputError, needing
from ownbert.hub import PREFIX, is_name, reason
from ownbert.inference.engines import Say, say_each
from ownbert.inference.finished_files import REPORTS, finished_files, require_inside
from ownbert.language.messages import Message
from ownbert.run.file_names import BLEND, ENSEMBLE
from ownbert.views import LINEAR

_HUB = "https://huggingface.co"
_WORDS = "linear models and vocabularies contain single words of the texts"
_SHOWN = 10  # names of files that are not uploaded


def push(
    folder: str | os.PathLike[str],
    name: str,
    *,
    private: bool = False,
    message: str = "Upload by ownbert push",
    with_texts: bool = False,
    dry_run: bool = False,
    say: Say | None = None,
) -> str:
    """Upload a finished folder to a repository on the hub, which is created if necessary.

    Only files needed to use the model are uploaded, with its card and the card's pictures
    (``finished_files``): no texts, recipes, logs, saved states, hidden or unknown files.

    Args:
        folder: folder of a model, a blend or an ensemble.
        name: "org/name".
        private: whether a new repository is private.
        message: commit message.
        with_texts: whether to include the report of ``fit``, which quotes texts.
        dry_run: upload nothing; needs no token, network or package.
        say: called with the list of files and their sizes, line by line, before the upload.

    Returns:
        The address of the repository.

    Raises:
        InputError: the folder has no model, or a link that points outside of it; the name is
            invalid, the extra ``hub`` is not installed, or the hub rejects the upload.
    """
    path, name = Path(folder), name.removeprefix(PREFIX)
    if not any((path / kind).is_file() for kind in (CONFIG, BLEND, ENSEMBLE)):
        raise InputError(
            "{path} has no {config}: it is not the folder of a finished model", path, CONFIG
        )
    if not is_name(name) or "/" not in name:
        raise InputError("{name!r} is not a name on the hub; write org/name", name)
    files = finished_files(path)
    if with_texts:
        files = sorted([*files, *(Path(n) for n in REPORTS if (path / n).is_file())])
    require_inside(path, files, cached=False)
    sizes = [(path / file).stat().st_size for file in files]
    lines = [f"{size:>15,}  {file.as_posix()}" for file, size in zip(files, sizes, strict=True)]
    lines.append(Message("{count:,} files, {sizes:,} bytes", len(files), sum(sizes)))
    uploaded = {file.parts[0] for file in files}
    left = [p.name + "/" * p.is_dir() for p in path.iterdir() if p.name not in uploaded]
    if left:
        more = Message(" and {count:,} more", len(left) - _SHOWN) if len(left) > _SHOWN else ""
        lines.append(Message("not uploaded: {files}{more}", ", ".join(sorted(left)[:_SHOWN]), more))
    if any(file.name.startswith(f"{LINEAR}.") for file in files):
        lines.append(Message("note: {line!t}", _WORDS))
    say_each(lines, say)
    if dry_run:
        return f"{os.environ.get('HF_ENDPOINT', _HUB)}/{name}"
    with needing("push needs a package that is missing: pip install 'ownbert[hub]'"):
        from huggingface_hub import CommitOperationAdd, HfApi
    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        added = [CommitOperationAdd(file.as_posix(), str(path / file)) for file in files]
        api.create_commit(name, added, commit_message=message)
    except Exception as error:  # many kinds of errors: no token, no network
        raise InputError("{name} could not be uploaded: {reason}", name, reason(error)) from None
    return f"{api.endpoint}/{name}"
