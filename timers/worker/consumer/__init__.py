"""How partitions come to this worker, and their records: Faust's consumer by batches, and what the group says."""
