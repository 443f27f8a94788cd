# For type checkers: all names of framework/__init__.pyi.
from framework import *  # noqa: F403
from framework import __version__ as __version__
