"""Other engines' interfaces, by this package's decoders: a program changes one import."""
