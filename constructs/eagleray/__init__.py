"""Constructs for distributed GPU training over EFA on Amazon EKS.

Import from the modules (`from eagleray.network import TrainingVpc`): `eagleray.catalog` is plain
Python and must stay importable without loading the CDK.
"""
