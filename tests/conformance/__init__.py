"""One contract for all engines: ``cases`` has requests and their outcomes, ``drivers`` runs them on each engine."""
