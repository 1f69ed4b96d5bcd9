"""Messages generated from ``protos/timers/v1`` by ``make protos``; never edited by hand."""
