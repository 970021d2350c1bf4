"""What a compression ends with, and how it is kept."""

import dataclasses
import json
from pathlib import Path

import keras

from udc_tf.compact.architecture import Architecture
from udc_tf.files import DamagedFileError, read_json, replaced_atomically

FORMAT = 1
REMEDY = "remove it, and it is made anew"


@dataclasses.dataclass(frozen=True)
class Compression:
    """How a compression went; `compress` leaves it with the network, as `tiny.compression`.

    Attributes:
        flash_bytes: of the compiled file; None if no target asked for it.
        divergence: of the outputs on the examples, from those of the original: of probabilities the
            Kullback-Leibler divergence, of others the squared error over their variance.
        accuracy_before, accuracy_after: on the examples, if there were labels.
        harm: the sum of the layers' harms, as they were estimated one by one.
        bound: the least that any choice could have, as the solver has proved.
        rounds: how many networks were fitted and compiled.
        seconds: of processor time, sensitivities included if they were not there before.
    """

    flash_bytes: int | None
    divergence: float
    accuracy_before: float | None
    accuracy_after: float | None
    harm: float
    bound: float
    rounds: int
    seconds: float


def with_facts(
    network: keras.Model, architecture: Architecture, compression: Compression
) -> keras.Model:
    """The network, with what is known of it."""
    network.architecture, network.compression = architecture, compression
    return network


def keep_result(
    folder: Path, key: str, architecture: Architecture, compression: Compression
) -> None:
    """Keeps a result, the note of how it went last."""
    architecture.save(folder / "architecture.json")
    content = {"format": FORMAT, "key": key, **dataclasses.asdict(compression)}
    with replaced_atomically(folder / "compression.json") as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n")


def kept_result(folder: Path, key: str) -> keras.Model | None:
    """What an earlier call with the same arguments left; None if there is nothing of that kind."""
    path = folder / "compression.json"
    if not path.is_file():
        return None
    content = read_json(path, REMEDY)
    if content.pop("key", None) != key or content.pop("format", None) != FORMAT:
        return None
    try:
        compression = Compression(**content)
    except TypeError as error:
        raise DamagedFileError(path, error, REMEDY) from error
    architecture = Architecture.load(folder / "architecture.json", REMEDY)
    return with_facts(architecture.build(), architecture, compression)
