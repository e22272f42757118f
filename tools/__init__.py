"""Tools of this repository, which are in no package that is installed."""
