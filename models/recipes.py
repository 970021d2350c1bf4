"""Recipes: a network, its data, search space, budget and training settings under one name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from udc_tf import models
from udc_tf.cost.targets import Flash, Macs, Target
from udc_tf.finetune.stages import Cosine, Stages
from udc_tf.models.data.augmentation import Turning
from udc_tf.search.settings import SearchSettings
from udc_tf.search.space import SearchSpace
from udc_tf.training.image_augmentation import Augmentation

TASKS = ("classification", "reconstruction", "super_resolution")
OPTIMIZERS = ("sgd", "adam")

_TENTHS = tuple(n / 10 for n in range(1, 11))
# The paper's options without its 32 bits, which no Ethos-U has.
PAPER_SPACE = SearchSpace(widths=_TENTHS, bits=(1, 4, 8), sparsities=(0.01, *_TENTHS))
ETHOS_SPACE = SearchSpace.preset("ethos_u55")
# Super resolution: what changes the multiplications.
MACS_SPACE = SearchSpace(widths=_TENTHS, kernels=(1, 3, 5))

_DEFAULT_SEARCH = SearchSettings()
_DEFAULT_STAGES = Stages(epochs=30)
# 50 epochs of warm-up, then 200 of search. Each sample has its own examples, so that a step of 32
# costs what 32 of one sample do, and there are as many fewer of them; one at a time fits a card.
_PAPER_SEARCH = SearchSettings.paper(warmup=0.2, full_batches=False, samples_per_pass=1)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that `udc` needs to know; every field can be overridden by a flag.

    Attributes:
        name: what `--recipe` takes.
        about: one line.
        network: a function of `udc_tf.models`, or "module:function".
        arguments: for that function, beside `input_shape` and `classes`.
        data: what `udc_tf.models.data.load` takes; None if the user must say.
        task: "classification", "reconstruction" (of the input) or "super_resolution".
        input_shape, classes: of the network where no data are at hand.
        flash, macs: budgets; None for none.
        space: the options.
        search: constants of the algorithm.
        search_epochs: of warm-up and search together.
        batch_size: of search and finetuning.
        search_batch_size: of the search, if it is another; all samples together.
        optimizer: "sgd" with momentum 0.9, or "adam".
        learning_rate: of the weights in the search, first and last, along a cosine.
        decision_learning_rate: of the decisions; None derives it from the run's length.
        stages: of finetuning.
        augmentation: of the training images.
        distil: whether finetuning asks for a teacher, as the paper has one here (`--teacher`).

    Example:

    >>> get("cifar10").flash, len(get("cifar10").model().layers)
    ('24KiB', 29)
    """

    name: str
    about: str
    network: str
    data: str | None
    input_shape: tuple[int, ...]
    classes: int
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task: str = "classification"
    flash: str | None = None
    macs: float | None = None
    space: SearchSpace = ETHOS_SPACE
    search: SearchSettings = _DEFAULT_SEARCH
    search_epochs: int = 30
    batch_size: int = 128
    search_batch_size: int | None = None
    optimizer: str = "sgd"
    learning_rate: tuple[float, float] = (0.1, 1e-4)
    decision_learning_rate: float | None = None
    stages: Stages = _DEFAULT_STAGES
    augmentation: Augmentation | Turning | None = None
    distil: bool = False

    def model(
        self, input_shape: tuple[int, ...] | None = None, classes: int | None = None
    ) -> keras.Model:
        """The network, for other data if told so."""
        shape: dict[str, Any] = {"input_shape": tuple(input_shape or self.input_shape)}
        if self.task == "classification":
            shape["classes"] = classes or self.classes
        return getattr(models, self.network)(**shape, **self.arguments)

    def make_optimizer(self, rate: Any) -> keras.optimizers.Optimizer:
        """Of the weights, with that learning rate."""
        if self.optimizer == "adam":
            return keras.optimizers.Adam(rate)
        return keras.optimizers.SGD(rate, momentum=0.9)

    def targets(self, accelerator: str = "ethos-u55-128") -> list[Target]:
        flash: list[Target] = [] if self.flash is None else [Flash(self.flash, accelerator)]
        return flash + ([] if self.macs is None else [Macs(self.macs)])


_CIFAR100 = Recipe(
    name="cifar100_0.55MB",
    about="the paper's CIFAR-100, wide residual network 20-10, 0.55 MB",
    network="wide_resnet",
    data="cifar100",
    input_shape=(32, 32, 3),
    classes=100,
    flash="0.55MB",
    space=PAPER_SPACE,
    search=_PAPER_SEARCH,
    search_epochs=250,
    search_batch_size=32 * 128,
    decision_learning_rate=1e-3,
    stages=Stages.cifar100(),
    augmentation=Augmentation(flip=True, crop=4, cutout=18),
    distil=True,
)
_IMAGENET = Recipe(
    name="imagenet_0.5MB",
    about="the paper's ImageNet, MobileNetV2, 0.5 MB",
    network="mobilenet_v2",
    data="imagenet",
    input_shape=(224, 224, 3),
    classes=1000,
    flash="0.5MB",
    space=PAPER_SPACE,
    search=_PAPER_SEARCH,
    search_epochs=250,
    batch_size=256,
    search_batch_size=32 * 256,
    decision_learning_rate=1e-3,
    stages=Stages.imagenet(),
    distil=True,
)

_SPOKEN_DIGITS = Recipe(
    name="spoken_digits",
    about="spoken digits, DS-CNN, 12 KiB; --data=spoken_digits.npz or a folder of .wav per digit",
    network="ds_cnn",
    data=None,
    input_shape=(49, 40, 1),
    classes=10,
    flash="12KiB",
)
_FOR_SENSORS = {"filters": (32, 32, 48, 48), "kernel_size": 9, "first_strides": 2}

_ALL = (
    Recipe(
        name="digits",
        about="8x8 digits that come with scikit-learn, small CNN, 8 KiB: the demo",
        network="small_cnn",
        data="digits",
        input_shape=(8, 8, 1),
        classes=10,
        flash="8KiB",
        search_epochs=30,
        batch_size=32,
        stages=Stages(epochs=30),
    ),
    Recipe(
        name="fashion_mnist",
        about="Fashion-MNIST, ResNet8, 16 KiB",
        network="resnet8",
        data="fashion_mnist",
        input_shape=(28, 28, 1),
        classes=10,
        flash="16KiB",
        augmentation=Augmentation(flip=True, crop=2),
        stages=Stages(epochs=30, l2=1e-4),
    ),
    Recipe(
        name="cifar10",
        about="MLPerf Tiny's image classification, ResNet8, 24 KiB",
        network="resnet8",
        data="cifar10",
        input_shape=(32, 32, 3),
        classes=10,
        flash="24KiB",
        search_epochs=60,
        augmentation=Augmentation(flip=True, crop=4),
        stages=Stages(epochs=60, l2=1e-4),
    ),
    Recipe(
        name="keyword_spotting",
        about="MLPerf Tiny's keyword spotting, DS-CNN, 16 KiB",
        network="ds_cnn",
        data="speech_commands",
        input_shape=(49, 10, 1),
        classes=12,
        flash="16KiB",
    ),
    _SPOKEN_DIGITS,
    dataclasses.replace(
        _SPOKEN_DIGITS,
        name="spoken_digits_conv1d",
        about="the same with convolutions over time alone",
        network="temporal_cnn",
        input_shape=(49, 40),
    ),
    dataclasses.replace(
        _SPOKEN_DIGITS,
        name="spoken_digits_lstm",
        about="the same with an LSTM behind convolutions, 16 KiB",
        network="temporal_lstm",
        input_shape=(49, 40),
        flash="16KiB",
        optimizer="adam",
        learning_rate=(3e-3, 1e-5),
        stages=Stages(
            epochs=30,
            learning_rates=(Cosine(3e-3, 3e-4), Cosine(1e-3, 1e-4), Cosine(1e-4, 0.0)),
        ),
    ),
    Recipe(
        name="engine_noise",
        about="UCR's FordA, faults told by engine noise, Conv1D, 8 KiB; --data=FordA_TRAIN.tsv",
        network="temporal_cnn",
        arguments=_FOR_SENSORS,
        data=None,
        input_shape=(500, 1),
        classes=2,
        flash="8KiB",
        batch_size=64,
    ),
    Recipe(
        name="activity",
        about="windows of motion sensors, Conv1D, 8 KiB; --data=FOLDER of .csv per class, or .npz",
        network="temporal_cnn",
        arguments=_FOR_SENSORS,
        data=None,
        input_shape=(128, 6),
        classes=7,
        flash="8KiB",
        batch_size=64,
    ),
    Recipe(
        name="visual_wake_words",
        about="MLPerf Tiny's visual wake words, MobileNetV1 0.25, 64 KiB; --data=FOLDER",
        network="mobilenet_v1",
        data=None,
        input_shape=(96, 96, 3),
        classes=2,
        flash="64KiB",
        batch_size=64,
        augmentation=Augmentation(flip=True, crop=8),
    ),
    Recipe(
        name="anomaly_detection",
        about="MLPerf Tiny's anomaly detection, dense autoencoder, 48 KiB; --data=FEATURES.npz",
        network="autoencoder",
        data=None,
        input_shape=(640,),
        classes=0,
        task="reconstruction",
        flash="48KiB",
        optimizer="adam",
        learning_rate=(1e-3, 1e-5),
        stages=Stages(
            epochs=30,
            learning_rates=(Cosine(1e-3, 1e-4), Cosine(1e-3, 1e-5), Cosine(1e-5, 0.0)),
        ),
    ),
    _CIFAR100,
    dataclasses.replace(
        _CIFAR100,
        name="cifar100_0.7MB",
        about="the paper's CIFAR-100, wide residual network 20-10, 0.7 MB",
        flash="0.7MB",
    ),
    _IMAGENET,
    dataclasses.replace(
        _IMAGENET,
        name="imagenet_1MB",
        about="the paper's ImageNet, MobileNetV2, 1 MB",
        flash="1MB",
    ),
    dataclasses.replace(
        _IMAGENET,
        name="imagenet_1.25MB",
        about="the paper's ImageNet, MobileNetV2 1.5x wider with 5x5 kernels, 1.25 MB",
        network="mobilenet_v2_wide",
        flash="1.25MB",
        distil=False,
    ),
    dataclasses.replace(
        _IMAGENET,
        name="imagenet_operators_0.5MB",
        about="the paper's ImageNet, MobileNetV2 with depth and operators searched, 0.5 MB",
        arguments={"operators": True},
    ),
    Recipe(
        name="super_resolution",
        about="the paper's 4x super resolution, FSRCNN-like, 38 million MACs for 64x64",
        network="fsrcnn",
        data="super_resolution",
        input_shape=(64, 64, 1),
        classes=0,
        task="super_resolution",
        # The paper's 0.53e9. Its table says "64x64", but gives FSRCNN 4.63e9, which is the count
        # for 320x180 (FSRCNN takes some 80,500 per pixel). Here all counts are for 64x64.
        macs=0.53e9 * (64 * 64) / (320 * 180),
        space=MACS_SPACE,
        search=dataclasses.replace(
            _PAPER_SEARCH, warmup=0.0, tau=(0.1, 0.1), vartheta=(0.25, 0.25), xi_schedule="cosine"
        ),
        search_epochs=300,
        batch_size=8,
        search_batch_size=32 * 8,
        optimizer="adam",
        learning_rate=(1e-4, 1e-5),
        decision_learning_rate=1e-3,
        stages=Stages(
            epochs=300,
            learning_rates=(Cosine(1e-3, 1e-4), Cosine(1e-3, 1e-5), Cosine(1e-5, 0.0)),
        ),
        augmentation=Turning(),
    ),
)

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _ALL}


def get(name: str) -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise ValueError(f"Known recipes: {', '.join(RECIPES)}. Received: {name!r}")
    return RECIPES[name]
