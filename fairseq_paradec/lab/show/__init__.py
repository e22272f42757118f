"""What readers see: one writer each of tables, plots and pages, and the views of traces.

Pure functions of records, tables and benchmarks; nothing here decodes or measures.
"""
