"""The model zoo and its data sets: one file per network, each a plain Keras functional model.

>>> model = resnet8(input_shape=(28, 28, 1), classes=10)
"""

from udc_tf.models import data as data
from udc_tf.models.autoencoder import autoencoder
from udc_tf.models.ds_cnn import ds_cnn
from udc_tf.models.fsrcnn import fsrcnn
from udc_tf.models.mobilenet_v1 import mobilenet_v1
from udc_tf.models.mobilenet_v2 import mobilenet_v2, mobilenet_v2_wide
from udc_tf.models.resnet8 import resnet8
from udc_tf.models.small_cnn import small_cnn
from udc_tf.models.temporal_cnn import temporal_cnn
from udc_tf.models.temporal_lstm import temporal_lstm
from udc_tf.models.wide_resnet import wide_resnet

__all__ = [
    "autoencoder",
    "ds_cnn",
    "fsrcnn",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilenet_v2_wide",
    "resnet8",
    "small_cnn",
    "temporal_cnn",
    "temporal_lstm",
    "wide_resnet",
]
