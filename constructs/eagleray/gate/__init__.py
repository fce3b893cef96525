"""What runs in the Lambda of the capacity gate; also plain checks of an account for whoever asks. No CDK here.

Needs nothing but the standard library and boto3, which Lambda's Python runtime brings.
"""
