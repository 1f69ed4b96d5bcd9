"""The jobs. Each reads, selects the columns that it needs, transforms DataFrames, and writes the columns of its
result."""
