"""All that this package uses of aiokafka's private parts; no other module may.

:mod:`timers.worker.library_versions` checks at start that the installed aiokafka is a version these modules were
written for.
"""
