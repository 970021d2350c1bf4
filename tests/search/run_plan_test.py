"""What `fit` does with the callbacks it is given."""

import keras

from tests.support import networks
from udc_tf.search.run_plan import with_last


class TestWithLast:
    def test_ours_come_behind_those_of_a_list(self):
        given, ours = keras.callbacks.Callback(), keras.callbacks.Callback()
        assert with_last(networks.small_cnn(), given, ours) == [given, ours]
        assert with_last(networks.small_cnn(), None, ours) == [ours]

    def test_and_behind_those_of_a_callback_list_which_stays_as_it_is(self):
        model, given, ours = networks.small_cnn(), *(keras.callbacks.Callback() for _ in range(2))
        container = keras.callbacks.CallbackList([given], model=model, epochs=3)
        both = with_last(model, container, ours)
        assert both.callbacks[:2] == [given, ours] and container.callbacks == [given]
        assert ours.model is model and ours.params == {"epochs": 3}
