"""What this project knows of Kafka: connections, topics and their metadata, progress records, reading requests."""
