"""The audit: what became of every request, from the topics alone. Pure transforms of DataFrames; no Kafka in here but
in ``bounds`` and ``disk``.

The order: ``evidence`` (what receivers saw), ``versions`` (what was asked for), ``outcomes`` (both together),
``figures`` (what they add up to), ``report``.
"""
