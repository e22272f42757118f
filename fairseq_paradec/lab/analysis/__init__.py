"""Numbers and pictures: pure functions of texts, times and traces; nothing here decodes."""

from typing import Any

#: A row of a table, by column; or an object of a JSON file.
Fields = dict[str, Any]
