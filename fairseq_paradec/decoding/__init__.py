"""The shared machinery of every method: it knows no paper."""
