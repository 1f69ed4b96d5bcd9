"""How what machines fire reaches Kafka: transactions, callback topics, and what is done with those that fail."""
