"""Numbers and pictures: pure functions of texts, times and traces; nothing here decodes."""
