"""Questions about timers: what waits, and what became of one, asked of any worker and answered for all of them."""
