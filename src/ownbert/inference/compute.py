"""What computes a folder's answers: one value for the device, the precision and the engine."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ownbert.checkpoint import Description
from ownbert.checkpoint.agreement import ANSWERS, VECTORS, agrees, claims
from ownbert.train.device import pick_device, pick_precision

TORCH, AUTO = "torch", "auto"
_NOTE = "bfloat16, as the model card allows; --precision float32 gives the last digits"


@dataclass(frozen=True)
class Compute:
    """How a folder is used.

    Args:
        device: auto, cpu or cuda.
        precision: float32, bfloat16 or auto; None: as the folder says (``settled``). With float32
            an answer does not depend on the other rows of the batch.
        engine: torch, onnx, openvino or auto (``choose_engine``).
        network: of a folder of ``fit``, only its network.
        packed: whether torch's models are copies whose matrices are packed for speed, which have no
            gradients.
        note: for the user, where the folder has chosen the precision.
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
        """The same with a precision, where none is named.

        That is bfloat16 on a CPU that multiplies it natively, if each of the networks whose answers
        are put together says that it agrees with float32; else float32.

        Args:
            networks: that compute.
            what: must agree.

        Raises:
            InputError: the device is not known.
        """
        if self.precision is not None:
            return self
        if (
            self.engine in (None, TORCH)
            and networks
            # First what costs nothing: exported files are used without torch.
            and all(claims(each.values, what) for each in networks)
            and pick_device(self.device).type == "cpu"
            and pick_precision(AUTO, "cpu") == "bfloat16"
            and all(agrees(each, what) for each in networks)
        ):
            return replace(self, precision="bfloat16", note=f"note: {_NOTE}")
        return replace(self, precision="float32")


FLOAT32, AS_FOLDER = Compute(), Compute(precision=None)
