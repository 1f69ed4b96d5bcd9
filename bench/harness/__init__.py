"""What every question needs: a broker, measured processes, a fast publisher and a checker from outside."""
