"""Samples in S3 and compatible object stores: downloads, streams, uploads.

Start at `bucket`, which opens a data set in a store; `store_client` sends requests and
retries them by a `RetryPolicy`.
"""
