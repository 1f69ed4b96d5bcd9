"""The pure core: no clock, no I/O, no logging, no third party. Everything here runs without Kafka."""
