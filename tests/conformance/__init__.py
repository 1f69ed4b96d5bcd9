"""One contract, every engine: what is asked for and what must come of it, as data (``cases``), run by each engine there
is (``drivers``)."""
