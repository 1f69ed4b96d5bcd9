"""What we are compared with. A peer that cannot run here raises ``Unavailable`` with the reason, and is reported so."""
