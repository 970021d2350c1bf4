"""The paper's recipes beside the paper's own values, field by field."""

import dataclasses

import pytest

from udc_tf.cli import checks
from udc_tf.cli.flags import make_flags
from udc_tf.cli.options import Options, resolve
from udc_tf.cli.usage import UsageError
from udc_tf.cli.workdir import WorkDir
from udc_tf.finetune.stages import Cosine
from udc_tf.models import recipes
from udc_tf.models.data.augmentation import Turning
from udc_tf.search.settings import SearchSettings
from udc_tf.training.image_augmentation import Augmentation

_TENTHS = tuple(n / 10 for n in range(1, 11))

# Section 3.2 and appendix F of the paper, for the search; G: "the same search settings".
_SEARCH = {
    "samples": 32,
    "full_batches": False,  # 3.2: "divide the number of optimization steps by that of samples"
    "tau": (0.66, 0.1),
    "vartheta": (0.0, 0.5),
    "xi": (0.1, 1.0),
    "xi_schedule": "linear",
    "warmup": 50 / 250,
    "kappa": {"width": None, "bits": 2, "sparsity": 2},
    "rejection": True,
    "projection": True,
    "straight_through": True,
    "decision_rate": 1e-3,
    "certainty": 0.0,  # uniform at the start
    "evidence": 0.0,  # ours, so none of it
    "price": 0.0,  # |E - e*| instead
    "range_follow": 0.0,  # ours
    # Our reading: the paper names no interval, and no gradient of weights that are pruned.
    "mask_refresh": 1,
    "pruned_gradient": 0.0,
}
# Not in the paper, or no matter of the result.
_OURS_IN_SEARCH = {"samples_per_pass", "strength", "rejection_draws", "decision_travel", "seed"}
_RESTARTS, _LAST = Cosine(0.1, 1e-4, cycle=2), (Cosine(0.1, 1e-4), Cosine(1e-4, 0.0))
_CLASSIFIER = {
    "task": "classification",
    "macs": None,
    "search_epochs": 250,
    "optimizer": "sgd",
    "learning_rate": (0.1, 1e-4),
    "decision_learning_rate": 1e-3,
    "arguments": {},
}
_SPACE = {"widths": _TENTHS, "bits": (1, 4, 8), "sparsities": (0.01, *_TENTHS)}
_CIFAR100 = {
    **_CLASSIFIER,
    "network": "wide_resnet",
    "data": "cifar100",
    "input_shape": (32, 32, 3),
    "classes": 100,
    "distil": True,
    "space": _SPACE,
    "search": _SEARCH,
    "augmentation": {"flip": True, "crop": 4, "cutout": 18},
    "stages": {
        "epochs": (254, 60, 30),
        "learning_rates": (_RESTARTS, *_LAST),
        "l2": 5e-4,
        "label_smoothing": 0.0,
        "train_batch_norm": False,
    },
}
_IMAGENET = {
    **_CLASSIFIER,
    "network": "mobilenet_v2",
    "data": "imagenet",
    "input_shape": (224, 224, 3),
    "classes": 1000,
    "distil": True,
    "space": _SPACE,
    "search": _SEARCH,
    "augmentation": None,  # the reader of ImageNet crops and flips by itself
    "stages": {
        "epochs": (126, 60, 30),
        "learning_rates": (_RESTARTS, *_LAST),
        "l2": 1e-4,
        "label_smoothing": 0.1,
        "train_batch_norm": True,
    },
}
_PAPER = {
    "cifar100_0.55MB": {**_CIFAR100, "flash": "0.55MB"},
    "cifar100_0.7MB": {**_CIFAR100, "flash": "0.7MB"},
    "imagenet_0.5MB": {**_IMAGENET, "flash": "0.5MB"},
    "imagenet_1MB": {**_IMAGENET, "flash": "1MB"},
    "imagenet_1.25MB": {
        **_IMAGENET, "flash": "1.25MB", "network": "mobilenet_v2_wide", "distil": False,
    },
    "super_resolution": {
        "network": "fsrcnn",
        "data": "super_resolution",
        "task": "super_resolution",
        "input_shape": (64, 64, 1),
        "classes": 0,
        "arguments": {},
        "flash": None,
        "macs": pytest.approx(0.53e9 * 64 * 64 / (320 * 180)),
        "space": {"widths": _TENTHS, "bits": None, "sparsities": None, "kernels": (1, 3, 5)},
        "search": {
            **_SEARCH,
            "tau": (0.1, 0.1),
            "vartheta": (0.25, 0.25),
            "xi_schedule": "cosine",
            "warmup": 0.0,
        },
        "search_epochs": 300,
        "optimizer": "adam",
        "learning_rate": (1e-4, 1e-5),
        "decision_learning_rate": 1e-3,
        "distil": False,
        # The paper says nothing of these two.
        "augmentation": {},
        "stages": {"epochs": (90, 150, 60)},
    },
}  # fmt: skip
# The paper gives no batch sizes.
_OURS = {"name", "about", "batch_size", "search_batch_size"}


@pytest.mark.parametrize("name", _PAPER)
def test_values_are_the_papers(name):
    recipe, paper = recipes.get(name), _PAPER[name]
    assert {f.name for f in dataclasses.fields(recipe)} == {*paper, *_OURS}  # none is left out
    for field, value in paper.items():
        found = getattr(recipe, field)
        if dataclasses.is_dataclass(found):
            for part, wanted in value.items():
                if part != "kappa":
                    assert getattr(found, part) == wanted, (field, part)
        else:
            assert found == value, field
    # Every sample has a whole batch of its own.
    assert recipe.search_batch_size == recipe.search.samples * recipe.batch_size


def test_no_setting_of_the_search_is_left_out():
    assert {f.name for f in dataclasses.fields(SearchSettings)} == {*_SEARCH, *_OURS_IN_SEARCH}
    kappa = recipes.get("cifar100_0.55MB").search.kappa
    assert {k: kappa.get(k) for k in _SEARCH["kappa"]} == _SEARCH["kappa"]


def test_every_field_has_a_flag():
    # The flags of those that have another name, or that several flags make up.
    others = {
        "name": ("recipe",),
        "network": ("model",),
        "arguments": ("model",),
        "input_shape": ("data", "image_size", "channels"),
        "classes": ("data",),
        "space": ("widths", "bits", "sparsities", "kernels"),
        "search": ("samples", "samples_per_pass", "warmup", "certainty"),
        "stages": ("finetune_epochs",),
        "distil": ("teacher",),
    }
    flags = make_flags()
    fields = {f.name for f in dataclasses.fields(recipes.Recipe)} - {"about"}
    missing = {f for f in fields for flag in others.get(f, (f,)) if flag not in flags}
    assert not missing


def test_flags_change_their_fields():
    given = Options(
        recipe="cifar10", optimizer="adam", decision_learning_rate=0.02, augmentation="crop=2"
    )
    run = resolve(given)
    assert run.recipe.optimizer == "adam" and run.recipe.decision_learning_rate == 0.02
    assert run.recipe.augmentation == Augmentation(flip=False, crop=2)
    assert resolve(Options(recipe="cifar10", augmentation="none")).recipe.augmentation is None
    turned = resolve(Options(recipe="super_resolution", augmentation="turn"))
    assert turned.recipe.augmentation == Turning()


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "lion"},
        {"decision_learning_rate": -1.0},
        {"augmentation": "crop"},
        {"augmentation": "flip=2"},
        {"augmentation": "turn"},
    ],
)
def test_what_they_cannot_be_is_refused(wrong):
    (value,) = wrong.values()
    with pytest.raises(UsageError, match=rf"Received: '?{value}'?$"):
        resolve(Options(recipe="cifar10", **wrong))


class TestDistillation:
    def test_a_teacher_is_asked_for_before_anything(self, tmp_path):
        run = resolve(Options(recipe="cifar100_0.55MB"))
        said = r"distils.*udc-teacher --recipe=cifar100_0.55MB .*--teacher=none.*Received: no --te"
        with pytest.raises(UsageError, match=said):
            checks.check_runs({"": run}, WorkDir(tmp_path), ("search", "finetune", "export"))

    def test_none_goes_without(self):
        run = resolve(Options(recipe="cifar100_0.55MB", teacher="none"))
        assert checks.load_teacher(run, None) is None


def test_a_batch_size_given_is_that_of_both():
    assert resolve(Options(recipe="cifar100_0.55MB")).search_batch == 4096
    assert resolve(Options(recipe="cifar100_0.55MB", batch_size=64)).search_batch == 64
    given = Options(recipe="cifar100_0.55MB", batch_size=64, search_batch_size=256)
    assert resolve(given).search_batch == 256
