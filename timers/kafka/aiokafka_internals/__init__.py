"""The only modules of this package that may use private parts of aiokafka.

:mod:`timers.worker.library_versions` checks at start that the installed aiokafka is a version that these modules
support.
"""
