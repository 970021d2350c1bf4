"""The Python rules of a Bazel that has them built in, under the name that newer ones load."""

py_library = native.py_library
py_test = native.py_test
