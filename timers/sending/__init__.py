"""Sends what machines fire to Kafka: transactions, callback topics, and the circuit breaker for failing targets."""
