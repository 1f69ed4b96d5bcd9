"""Settings: what may be configured, where a value comes from, and how it is checked."""
