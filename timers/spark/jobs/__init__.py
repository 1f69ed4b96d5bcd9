"""The jobs: each reads, selects its contract, transforms DataFrames, selects the contract of its result, and writes."""
