"""What happens to due timers: decisions, transactions, and what is known of callback topics."""
