"""Access to Kafka: connections, topics and their metadata, progress records, reading requests."""
