"""Queues with an acknowledgement for each message, on a Kafka topic and a consumer group."""
