"""Sends what machines fire to Kafka: transactions, and what is known of callback topics."""
