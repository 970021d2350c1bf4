"""The networks of `zoo/`: the command that makes each, and what its card has to say."""

import dataclasses

_MIT_DIGITS = (
    "AudioMNIST (Becker et al.), MIT licence: 60 speakers, each digit fifty times, as 49 frames of "
    "40 log-mel bands. Split by speaker: 1 to 48 train, 49 to 54 validate, 55 to 60 test"
)
_SHORT = ("--size_compiles=3", "--samples=2", "--runners=tflm,npu")
# Small batches: of so few images large ones would make too few steps.
_LONGER = (
    *("--examples=6000", "--search_epochs=4", "--finetune_epochs=10", "--batch_size=32"),
    *_SHORT,
)
_NO_COMMANDS = (
    "Ten English digits, spoken alone and recorded near the microphone. There is no class for "
    "silence or other words, so that it always names a digit. Nothing that matters may hang on it."
)


@dataclasses.dataclass(frozen=True)
class Network:
    """One command, for three budgets.

    Attributes:
        recipe: of `udc`.
        title: what it is, in a line.
        data: what it was trained on, and the licence.
        not_for: what it must not be used for.
        budgets: of flash.
        training: flags that say how long.
        file: the data, beside the work directory; empty if the recipe finds them.
        named: the flag that says where they are.
    """

    recipe: str
    title: str
    data: str
    not_for: str
    budgets: tuple[str, str, str]
    training: tuple[str, ...]
    file: str = ""
    named: str = ""

    def command(self, seed: int) -> list[str]:
        """The flags of `udc`.

        >>> " ".join(NETWORKS["activity"].command(1)[:3])
        '--recipe=activity --data=activity.npz --flash=4KiB,6KiB,8KiB'
        """
        return [
            f"--recipe={self.recipe}",
            *((self.named,) if self.named else ()),
            f"--flash={','.join(self.budgets)}",
            *self.training,
            *((f"--seed={seed}",) if seed else ()),
        ]


NETWORKS = {
    "spoken_digits_conv1d": Network(
        recipe="spoken_digits_conv1d",
        title="Spoken digits, convolutions over time",
        data=_MIT_DIGITS,
        not_for=_NO_COMMANDS,
        budgets=("6KiB", "9KiB", "12KiB"),
        training=("--examples=12000", "--search_epochs=6", "--finetune_epochs=12", *_SHORT),
        file="spoken_digits.npz",
        named="--data=spoken_digits.npz",
    ),
    "activity": Network(
        recipe="activity",
        title="Exercises of the shoulder, told from a watch's motion sensors, Conv1D",
        data="Seglearn's watch data (PyPI `seglearn` 1.2.5, BSD licence): 140 recordings of seven "
        "exercises, three axes of acceleration and three of rotation, in windows of 128 steps. "
        "Split by person: 1 to 7 train, 8 validates, 9 and 10 test",
        not_for="Seven exercises of ten people, always one of the seven: no medical use, and no "
        "other movements.",
        budgets=("4KiB", "6KiB", "8KiB"),
        training=("--search_epochs=12", "--finetune_epochs=24", *_SHORT),
        file="activity.npz",
        named="--data=activity.npz",
    ),
    "fashion_mnist": Network(
        recipe="fashion_mnist",
        title="Clothing, 28x28, ResNet8",
        data="Fashion-MNIST (Zalando), MIT licence: 60,000 images to train, 10,000 to test",
        not_for="Shop images on black, always one of ten classes: a benchmark, not a product.",
        budgets=("8KiB", "16KiB", "24KiB"),
        training=(
            *("--examples=6000", "--search_epochs=3", "--finetune_epochs=8", "--batch_size=32"),
            *_SHORT,
        ),
    ),
    "spoken_digits_ds_cnn": Network(
        recipe="spoken_digits",
        title="Spoken digits, DS-CNN",
        data=_MIT_DIGITS,
        not_for=_NO_COMMANDS,
        budgets=("9KiB", "12KiB", "16KiB"),
        training=_LONGER,
        file="spoken_digits.npz",
        named="--data=spoken_digits.npz",
    ),
    "cifar10": Network(
        recipe="cifar10",
        title="Photographs, 32x32, ResNet8",
        data="CIFAR-10 (Krizhevsky), which names no licence, re-encoded as JPEG: 50,000 images to "
        "train, 10,000 to test. Compare with each other, not with results on the originals",
        not_for="Ten classes of small photographs, always one of them: a benchmark, not a product.",
        budgets=("12KiB", "24KiB", "36KiB"),
        training=_LONGER,
        file="cifar10.npz",
        named="--data_dir=.",
    ),
    "spoken_digits_lstm": Network(
        recipe="spoken_digits_lstm",
        title="Spoken digits, an LSTM behind convolutions",
        data=_MIT_DIGITS,
        not_for=_NO_COMMANDS,
        budgets=("16KiB", "18KiB", "20KiB"),
        training=(
            "--examples=6000",
            "--search_epochs=3",
            "--finetune_epochs=0,6,0",
            "--batch_size=128",
            *_SHORT,
        ),
        file="spoken_digits.npz",
        named="--data=spoken_digits.npz",
    ),
    "super_resolution": Network(
        recipe="super_resolution",
        title="Four times the pixels, FSRCNN-like, brightness alone",
        data="148 photographs to train, Set5 and Set14 to test; their licences are not known",
        not_for="Detail that it adds is made up: no use where an image is evidence.",
        budgets=("8KiB", "10KiB", "12KiB"),
        # The recipe's search needs hundreds of epochs, and its multiplications alone are bounded.
        training=(
            *("--search_epochs=3", "--finetune_epochs=8", "--batch_size=8", "--certainty=60"),
            *("--learning_rate=0.001", "--bits=4,8", "--sparsities=0.3,0.6,1"),
            *_SHORT,
        ),
        file="super_resolution",
        named="--data_dir=super_resolution",
    ),
}
