"""What a Keras model is: its calls, its channel groups, and what each layer becomes in int8."""
