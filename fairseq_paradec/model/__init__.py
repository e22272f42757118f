"""What is read of a model's files without torch and fairseq: numpy and the standard library."""
