"""Dead letters: reading them, choosing some of them, and publishing their requests again."""
