"""The contracts of Paceline. Read these modules first.

There are four questions and four groups:

- Data: how do records become host batches?
- Loader: when is a batch on the device?
- Parallel: how many replicas compute, and how do they communicate?
- Precision: with which numbers do they compute?

The Trainer sees only these contracts. A Protocol is implemented without inheriting from it.
``tests/contract/`` checks every promise. In shapes, B is the number of records in a batch.
"""
