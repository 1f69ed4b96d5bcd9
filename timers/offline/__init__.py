"""What operators read and move without a worker."""
