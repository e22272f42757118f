"""Models as decoding runs them: their weights, a cache, and passes over chunks of tokens."""
