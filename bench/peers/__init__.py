"""Systems for comparison. A peer that cannot run here raises ``Unavailable`` with the reason."""
