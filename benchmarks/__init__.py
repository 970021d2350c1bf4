"""What measures the claims: every script begins with its question and its command."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
