"""Samples in S3 and whatever speaks like it: downloads, streams, uploads.

Start at `bucket`, which opens a data set in a store; `store_client` makes the requests and retries
them, `request_errors` turns their failures into messages.
"""
