"""Questions to an AWS account before a deployment costs anything. Only reads, except `probe`, which asks first."""
