"""All that is pending of an app as a file: ``timers export`` writes it, ``timers import-pending`` sets it elsewhere."""
