"""DataFrames as timers, and what is pending as a DataFrame: the data source ``timers``, and files of rows."""
