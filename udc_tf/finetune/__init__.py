"""Three stages of training after which deployment changes nothing."""
