"""The pure core: no clock, no I/O, no logging, no third-party package. All of it runs without Kafka."""
