"""Device, precision and engine of inference as one value."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ownbert.checkpoint import Description
from ownbert.checkpoint.agreement import ANSWERS, VECTORS, agrees, claims
from ownbert.train.device import pick_device, pick_precision

# Called with the number of rows so far; called with a note or warning.
Progress = Callable[[int], None]
Say = Callable[[str], None]
TORCH, AUTO = "torch", "auto"
_NOTE = "bfloat16, which the model card allows; use --precision float32 for exact digits"


@dataclass(frozen=True)
class Compute:
    """How a folder's models are run.

    Args:
        device: auto, cpu or cuda.
        precision: float32, bfloat16 or auto; None: the folder decides (``settled``). In float32 a
            prediction does not depend on the other rows of the batch.
        engine: torch, onnx, openvino or auto (``choose_engine``).
        network: use only the network of a ``fit`` folder.
        packed: whether torch runs copies of the models with packed matrices, which are faster but
            have no gradients.
        note: note for the user if the folder has decided the precision.
    """

    device: str = "auto"
    precision: str | None = "float32"
    engine: str | None = None
    network: bool = False
    packed: bool = True
    note: str = ""

    def settled(
        self, networks: Sequence[Description], what: Collection[str] = (ANSWERS, VECTORS)
    ) -> "Compute":
        """A copy with a precision; the same object if it already has one.

        The precision is bfloat16 on a CPU with native bfloat16 multiplication if all networks of
        the blend or ensemble were found to agree with float32, and float32 otherwise.

        Args:
            networks: descriptions of the networks.
            what: outputs that must agree.

        Raises:
            InputError: unknown device.
        """
        if self.precision is not None:
            return self
        if (
            self.engine in (None, TORCH)
            and networks
            # The cheapest check first: exported files are run without torch.
            and all(claims(each.values, what) for each in networks)
            and pick_device(self.device).type == "cpu"
            and pick_precision(AUTO, "cpu") == "bfloat16"
            and all(agrees(each, what) for each in networks)
        ):
            return replace(self, precision="bfloat16", note=f"note: {_NOTE}")
        return replace(self, precision="float32")


def say_each(lines: Iterable[str], say: Say | None) -> None:
    """Pass notes and warnings to the user's function, if there is one."""
    if say is not None:
        for line in lines:
            say(line)


FLOAT32, AS_FOLDER = Compute(), Compute(precision=None)
