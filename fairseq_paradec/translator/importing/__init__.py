"""Models of other toolkits as fairseq's: read by their format, and written as a model folder."""
