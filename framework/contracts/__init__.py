"""What the parts promise each other. Read these modules first.

A Protocol is implemented without inheriting from it, and ``tests/contract/`` checks every promise.
In shapes, B is the number of records in a batch.
"""
