# All metadata is in pyproject.toml. This file exists for the one thing that cannot be said there:
# the optional native extension is to be declared here. There is none yet.
from setuptools import setup

setup()
