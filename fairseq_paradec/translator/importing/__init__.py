"""Models of other toolkits as fairseq's: read by their format, and written as a model folder."""

#: Raised where another folder is made of the same files: what earlier versions imported of models
#: of the hub is then imported anew.
VERSION = 1
